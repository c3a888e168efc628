"""The files that docs/architecture.md lists for an iteration are those that it runs through."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.train.build import build_trainer
from slowfast_patches.train.trainer import Hook
from slowfast_patches.utils.distributed import World

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "architecture.md"


class TraceIteration(Hook):
    """Notes the files of the third iteration, and ends the training."""

    def __init__(self) -> None:
        self.files = set[str]()

    def _note(self, frame: FrameType, event: str, arg: object) -> None:
        self.files.add(frame.f_code.co_filename)

    def after_step(self, trainer, step, outcome) -> None:
        if step.iteration == 1:
            sys.setprofile(self._note)
        if step.iteration == 2:
            raise KeyboardInterrupt


@contextmanager
def without_profile() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)


def test_the_path_of_an_iteration_is_as_documented(
    tiny_config: Callable[..., Recipe], tmp_path: Path
):
    section = PAGE.read_text().split("\n## One iteration\n")[1].split("\n## ")[0]
    listed = re.findall(r"^\d+\. `([\w/]+\.py)`", section, re.MULTILINE)
    assert 10 < len(listed) <= 20
    recipe = tiny_config(tmp_path, "DATA_LOADER.NUM_WORKERS", 0)
    world = World(0, 1, torch.device("cpu"))
    hook = TraceIteration()
    trainer = build_trainer(recipe, world, StopRequest(world), hooks=[hook])
    with without_profile():
        trainer.train()
    roots = {"multigrid": ROOT / "projects" / "multigrid"}
    for name in listed:
        folder, _, rest = name.partition("/")
        path = roots[folder] / rest if folder in roots else ROOT / "slowfast_patches" / name
        assert str(path) in hook.files, name
