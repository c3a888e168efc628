"""Boxes are known in the folder of detection alone."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("folder", ["slowfast_patches", "projects", "tools"])
def test_nothing_outside_knows_of_boxes(folder):
    files = (ROOT / folder).rglob("*.py")
    outside = [path for path in files if "extras" not in path.parts]
    assert [str(path) for path in outside if "box" in path.read_text().lower()] == []
