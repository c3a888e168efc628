"""Networks have one block in each stage, and trainers are stopped by hooks, or have no network."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from multigrid import Schedule, ScheduleStep
from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.train.step import Outcome
from slowfast_patches.train.trainer import Hook, Progress, Trainer
from slowfast_patches.utils.distributed import World
from tests.conftest import Folder, one_block

PREDICTED = ("TEST.SAVE_RESULTS_PATH", "predictions.csv")
ALONE = World(0, 1, torch.device("cpu"))


@pytest.fixture(autouse=True, scope="module")
def _one_block() -> Iterator[None]:
    with one_block():
        yield


@pytest.fixture(scope="session")
def small_run(run_small: Callable[..., Folder], made_once: Callable[..., Path]) -> Path:
    """Return the folder of an undisturbed run of `run_small`. Tests must not write to it."""
    return made_once("small_run", lambda folder: run_small(folder, *PREDICTED))


class At(Hook):
    """Acts once so many iterations are done: `At(7, die)`."""

    def __init__(self, done: int, act: Callable[[Trainer], object]) -> None:
        self.done, self.act = done, act

    def after_step(self, trainer: Trainer, step: object, outcome: object) -> None:
        if trainer.progress.iteration == self.done:
            self.act(trainer)


def die(trainer: Trainer) -> None:
    raise SystemExit


def train_without_model(
    plan: Schedule,
    hooks: list[Hook],
    start: int,
    take_step: Callable[[ScheduleStep], Outcome],
    *,
    wait: Callable[[int], object] = lambda i: None,
    evaluated: Iterable[int] = (),
    seconds: float = 0.0,
    changes: Sequence[str] = (),
) -> Trainer:
    """Call the hooks from an iteration on, as after `seconds` of training. Return the trainer.

    `wait(i)` is called where mini-batch i is loaded. Iterations `evaluated` have been validated.
    """

    def batches(start: int) -> Iterator[dict[str, int]]:
        for i in range(start, plan.iterations):
            wait(i)
            yield {"iteration": i}

    stepper: Any = SimpleNamespace(
        forward_backward=lambda step, *_: take_step(step), update=lambda: None
    )
    trainer = Trainer(stepper, plan, batches, hooks, world=ALONE, stop=StopRequest(ALONE))
    trainer.clock.load({"training": seconds})
    evaluations = [{"iteration": done} for done in evaluated if done <= start]
    trainer.progress = Progress(iteration=start, evaluations=evaluations, changes=[*changes])
    with suppress(SystemExit):
        trainer.train()
    return trainer
