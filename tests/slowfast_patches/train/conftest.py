"""The tiny recipe with one block in each stage: what is trained here is trained in no time. Only
`multigrid_run` draws its pictures."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest import mock

import pytest

from slowfast_patches import patching
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.train import run as run_module
from slowfast_patches.train.record import tables

ONE_BLOCK = ("RESNET.NUM_BLOCK_TEMP_KERNEL", [[1, 1]] * 4)


@contextmanager
def one_block() -> Iterator[None]:
    patching.apply()
    from slowfast.models import video_model_builder

    with mock.patch.dict(video_model_builder._MODEL_STAGE_DEPTH, {50: (1, 1, 1, 1)}):
        yield


@pytest.fixture(autouse=True, scope="module")
def _one_block() -> Iterator[None]:
    with one_block():
        yield


@pytest.fixture(scope="session")
def tiny_config(tiny_config: Callable[..., Recipe]) -> Callable[..., Recipe]:
    return lambda output, *keys: tiny_config(output, *ONE_BLOCK, *keys)


@contextmanager
def no_pictures() -> Iterator[None]:
    with (
        mock.patch.object(run_module, "plot_plan"),
        mock.patch.object(tables, "_plot_confusion"),
    ):
        yield


@pytest.fixture(scope="session")
def train(train: Callable[..., Path]) -> Callable[..., Path]:
    def run_here(output: Path, *keys: object, pictures: bool = False) -> Path:
        with one_block(), nullcontext() if pictures else no_pictures():
            return train(output, *ONE_BLOCK, *keys)

    return run_here


@pytest.fixture(scope="session")
def multigrid_run(train: Callable[..., Path], made_once: Callable[..., Path]) -> Path:
    """The folder of a finished run; not to be written to."""
    return made_once("one_block_run", functools.partial(train, pictures=True))


@pytest.fixture
def command_line(command_line: Callable[..., tuple[int, str]]) -> Callable[..., tuple[int, str]]:
    def run_here(output: Path, *keys: object) -> tuple[int, str]:
        with no_pictures():
            return command_line(output, *ONE_BLOCK, *keys)

    return run_here
