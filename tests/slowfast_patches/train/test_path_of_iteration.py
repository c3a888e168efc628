"""The files that docs/architecture.md lists for an iteration are exactly those that run in it."""

import re
import sys
from pathlib import Path

from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.train.build_trainer import build_trainer
from slowfast_patches.train.trainer import Hook, Trainer
from tests.slowfast_patches.train.conftest import ALONE

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "architecture.md"
FOLDERS = {
    "multigrid": ROOT / "projects" / "multigrid",
    "slowfast_patches": ROOT / "slowfast_patches",
}
MOST = 28
"""Number of files that an iteration may run through."""
ORDINARY = (
    *("DATA_LOADER.NUM_WORKERS", 0, "MULTIGRID.LONG_CYCLE", False, "SOLVER.STEPS", [0, 4]),
    *("MULTIGRID.EVAL_FREQ", 0, "TRAIN.EVAL_PERIOD", 1000, "TRAIN.CHECKPOINT_PERIOD", 1000),
)
"""The traced iteration begins no phase, and no validation or checkpoint follows it."""


def listed_files() -> list[str]:
    """Return the files of the page, such as `multigrid/schedule.py` or `train/trainer.py`."""
    section = PAGE.read_text(encoding="utf-8").split("\n## One iteration\n")[1].split("\n## ")[0]
    numbered = section[section.index("\n1. ") : section.index("\n\n", section.index("\n1. "))]
    return re.findall(r"`((?:\w+/)+\w+\.py)`", numbered)


class Tracer(Hook):
    """Trace one iteration, from loading its mini-batch to the last hook."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.files = set[str]()

    def after_step(self, trainer: Trainer, step: object, outcome: object) -> None:
        done = trainer.progress.iteration
        if done == self.number:
            sys.setprofile(lambda frame, *_: self.files.add(frame.f_code.co_filename))
        elif done == self.number + 1:
            sys.setprofile(None)
            trainer.should_stop = True


def test_the_path_of_an_iteration_is_as_documented(tiny_config, tmp_path):
    tracer = Tracer(5)
    recipe = tiny_config(tmp_path, *ORDINARY)
    trainer = build_trainer(recipe, ALONE, StopRequest(ALONE), hooks=[])
    trainer.hooks.append(tracer)  # after the hooks that log
    trainer.train()
    ran = {
        path.relative_to(folder.parent if name == "multigrid" else folder).as_posix()
        for name, folder in FOLDERS.items()
        for path in map(Path, tracer.files)
        if path.is_relative_to(folder)
    }
    listed = listed_files()
    assert len(listed) == len(set(listed)) <= MOST
    assert {"not listed": ran - set(listed), "not run": set(listed) - ran} == {
        "not listed": set(),
        "not run": set(),
    }
