"""What is trained here has one block in each stage, and draws no pictures."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from unittest import mock

import pytest

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.train import run as run_module
from slowfast_patches.train.build import build_trainer
from slowfast_patches.train.record import tables
from slowfast_patches.train.trainer import Hook, Trainer

OneBlock = Callable[[], AbstractContextManager[None]]


@pytest.fixture(autouse=True, scope="module")
def _one_block(one_block: OneBlock) -> Iterator[None]:
    with one_block():
        yield


@pytest.fixture(scope="session")
def tiny_config(
    tiny_config: Callable[..., Recipe], one_block_keys: tuple[object, ...]
) -> Callable[..., Recipe]:
    return lambda output, *keys: tiny_config(output, *one_block_keys, *keys)


@contextmanager
def no_pictures() -> Iterator[None]:
    with (
        mock.patch.object(run_module, "plot_plan"),
        mock.patch.object(tables, "_plot_confusion"),
    ):
        yield


class At(Hook):
    """Acts once so many iterations are done: `hooked(At(7, die))`."""

    def __init__(self, done: int, act: Callable[[Trainer], object]) -> None:
        self.done, self.act = done, act

    def after_step(self, trainer: Trainer, step: object, outcome: object) -> None:
        if trainer.progress.iteration == self.done:
            self.act(trainer)


class SaveAndDie(Hook):
    """Saves once so many iterations are done, and ends the process after the next."""

    def __init__(self, done: int) -> None:
        self.done = done

    def after_step(self, trainer: Trainer, step: object, outcome: object) -> None:
        trainer.should_save = trainer.progress.iteration == self.done
        if trainer.progress.iteration > self.done:
            raise SystemExit


def hooked(hook: Hook) -> AbstractContextManager[object]:
    """Runs that are started in the body have the hook."""
    return mock.patch.object(
        run_module, "build_trainer", lambda *given: build_trainer(*given[:-1], [hook])
    )


@pytest.fixture(scope="session")
def train(
    train: Callable[..., Path], one_block: OneBlock, one_block_keys: tuple[object, ...]
) -> Callable[..., Path]:
    def run_here(output: Path, *keys: object) -> Path:
        with one_block(), no_pictures():
            return train(output, *one_block_keys, *keys)

    return run_here


@pytest.fixture
def command_line(
    command_line: Callable[..., tuple[int, str]], one_block_keys: tuple[object, ...]
) -> Callable[..., tuple[int, str]]:
    def run_here(output: Path, *keys: object) -> tuple[int, str]:
        with no_pictures():
            return command_line(output, *one_block_keys, *keys)

    return run_here
