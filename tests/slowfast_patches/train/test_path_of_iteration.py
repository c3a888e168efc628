"""The files that docs/architecture.md lists for an iteration are those that it runs through."""

import re
import sys
from pathlib import Path

import pytest

from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.train.build import build_trainer
from slowfast_patches.train.trainer import Trainer
from tests.slowfast_patches.train.conftest import ALONE, At

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "architecture.md"


def path_of(name: str) -> str:
    """The path of a file that the page names: `multigrid/...`, or within slowfast_patches."""
    folder = "projects" if name.startswith("multigrid/") else "slowfast_patches"
    return str(ROOT / folder / name)


def test_the_path_of_an_iteration_is_as_documented(tiny_config, tmp_path):
    section = PAGE.read_text().split("\n## One iteration\n")[1].split("\n## ")[0]
    listed = re.findall(r"^\d+\. `([\w/]+\.py)`", section, re.MULTILINE)
    assert 10 < len(listed) <= 20
    files = set[str]()

    def trace(trainer: Trainer) -> None:
        sys.setprofile(lambda frame, *_: files.add(frame.f_code.co_filename))

    def end(trainer: Trainer) -> None:
        sys.setprofile(None)
        raise KeyboardInterrupt

    recipe = tiny_config(tmp_path, "DATA_LOADER.NUM_WORKERS", 0)
    hooks = [At(2, trace), At(3, end)]
    trainer = build_trainer(recipe, ALONE, StopRequest(ALONE), hooks=hooks)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert {path_of(name) for name in listed} <= files
