"""Runs that are killed, asked to stop, lose a worker, or find the disk full: saved, said, continued
as if never stopped, bit for bit; tests/faults kills for it."""

import multiprocessing
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slowfast_patches.train import checkpoint as checkpoints
from slowfast_patches.train import evaluate as evaluate_module
from slowfast_patches.train import multi_view_test as test_module
from slowfast_patches.train.trainer import Trainer
from slowfast_patches.utils.errors import (
    INTERRUPTED_STATUS,
    TrainingInterruptedError,
    explain_machine_error,
)
from tests.slowfast_patches.train.conftest import At, hooked

pytestmark = pytest.mark.slow

PLAIN = (
    *("MULTIGRID.LONG_CYCLE", False, "MULTIGRID.SHORT_CYCLE", False, "TEST.ENABLE", False),
    *("BN.USE_PRECISE_STATS", False, "TRAIN.CHECKPOINT_PERIOD", 1),
)
"""Saved every 6 iterations."""
SHORT = ("SOLVER.MAX_EPOCH", 1, "SOLVER.STEPS", [], "SOLVER.LRS", [1])
"""6 iterations."""


def send(number: signal.Signals) -> None:
    """To this process and those that read clips for it, as a launcher or a terminal does: a worker
    ends when its parent sends it, and not by another's."""
    workers = [worker.pid for worker in multiprocessing.active_children()]
    subprocess.run(["kill", f"-{number}", *map(str, [*workers, os.getpid()])], check=True)


@contextmanager
def before(patch: pytest.MonkeyPatch, owner: object, name: str, act: Callable) -> Iterator[None]:
    """`act(*arguments)` before each call of a function."""
    original = getattr(owner, name)

    def acting(*args: object, **kwargs: object) -> object:
        act(*args)
        return original(*args, **kwargs)

    with patch.context() as patched:
        patched.setattr(owner, name, acting)
        yield


def test_stopped_by_signals_it_ends_as_if_never_stopped_and_once_finished_stays_as_it_is(
    train: Callable[..., Path],
    command_line: Callable[..., tuple[int, str]],
    multigrid_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    opened: type,
    assert_same_run: Callable[..., None],
):
    """Stop after an iteration within a phase, in a validation, and in the test."""
    with hooked(At(11, lambda _: send(signal.SIGTERM))):
        status, error = command_line(tmp_path, "DATA_LOADER.NUM_WORKERS", 1)
    content, last = opened(tmp_path).checkpoint, checkpoints.last_checkpoint(tmp_path)
    assert (status, content["iteration"]) == (INTERRUPTED_STATUS, 12)
    assert f"interrupted: stopped by SIGTERM\nThe last checkpoint is {last}." in error
    assert "Traceback" not in error
    for module, number in ((evaluate_module, signal.SIGUSR1), (test_module, signal.SIGINT)):
        ask = before(monkeypatch, module, "evaluate", lambda *_, number=number: send(number))
        with ask, pytest.raises(TrainingInterruptedError):
            train(tmp_path)
    assert not (tmp_path / "result.json").exists()
    train(tmp_path)
    assert_same_run(opened(tmp_path), opened(multigrid_run))
    result = opened(tmp_path).result
    train(tmp_path)
    assert opened(tmp_path).result["seconds"]["training"] == result["seconds"]["training"]
    assert_same_run(opened(tmp_path), opened(multigrid_run))


def test_a_worker_that_is_killed_stops_the_training_with_what_to_do(
    train: Callable[..., Path], tmp_path: Path
):
    def kill(_: Trainer) -> None:
        for worker in multiprocessing.active_children():
            os.kill(worker.pid, signal.SIGKILL)

    with (
        hooked(At(8, kill)),
        pytest.raises((RuntimeError, OSError, EOFError)) as caught,
    ):
        train(tmp_path, *PLAIN, "DATA_LOADER.NUM_WORKERS", 1)
    assert "worker was killed" in explain_machine_error(caught.value)
    assert "00000006.pyth. Repeat the command" in caught.value.__notes__[0]
