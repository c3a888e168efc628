"""Detection is in its own folder; an import contract says that nobody imports it."""

from pathlib import Path

import pytest

from slowfast_patches.registry import DATASETS, TASKS

ROOT = Path(__file__).parents[3]
KEYS = ROOT / "slowfast_patches" / "config" / "detection_keys.py"


@pytest.mark.parametrize("folder", ["slowfast_patches", "projects", "tools"])
def test_nothing_outside_knows_of_boxes(folder):
    files = (ROOT / folder).rglob("*.py")
    outside = [path for path in files if path.parent.name != "detection" and path != KEYS]
    assert [str(path) for path in outside if "box" in path.read_text().lower()] == []


def test_it_is_registered_as_by_a_user():
    data_set = DATASETS["ava"].build.__self__
    for registered in (data_set, TASKS["detection"].build):
        assert registered.__module__.startswith("slowfast_patches.detection.")
