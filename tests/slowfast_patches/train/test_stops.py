"""Runs that are asked to stop, or lose a worker, are saved and continued as if never stopped, bit
for bit; tests/faults kills for it."""

import multiprocessing
import os
import signal
import subprocess
from pathlib import Path

import pytest

from slowfast_patches.train import checkpoint as checkpoints
from slowfast_patches.train import evaluate as evaluate_module
from slowfast_patches.train import multi_view_test as test_module
from slowfast_patches.train.trainer import Trainer
from slowfast_patches.utils.errors import explain_machine_error
from slowfast_patches.utils.interruption import INTERRUPTED_STATUS, TrainingInterruptedError
from tests.conftest import Folder, assert_same_run
from tests.slowfast_patches.train.conftest import At

PLAIN = (
    *("MULTIGRID.LONG_CYCLE", False, "MULTIGRID.SHORT_CYCLE", False, "TEST.ENABLE", False),
    *("BN.USE_PRECISE_STATS", False, "TRAIN.CHECKPOINT_PERIOD", 1),
)
"""Saved every 6 iterations."""


def send(number: signal.Signals) -> None:
    """To this process and those that read clips for it, as a launcher or a terminal does: a worker
    ends when its parent sends it, and not by another's."""
    workers = [worker.pid for worker in multiprocessing.active_children()]
    subprocess.run(["kill", f"-{number}", *map(str, [*workers, os.getpid()])], check=True)


def send_before_evaluating(patch: pytest.MonkeyPatch, module: object, number: int) -> None:
    evaluate = module.evaluate

    def stopped(*given: object) -> object:
        send(number)
        return evaluate(*given)

    patch.setattr(module, "evaluate", stopped)


def test_stopped_by_signals_it_ends_as_if_never_stopped_and_once_finished_stays_as_it_is(
    train, command_line, multigrid_run: Path, tmp_path, monkeypatch
):
    """Stop after an iteration within a phase, in a validation, and in the test."""
    stop = At(11, lambda _: send(signal.SIGTERM))
    with pytest.raises(TrainingInterruptedError):
        train(tmp_path, "DATA_LOADER.NUM_WORKERS", 1, hooks=[stop])
    run, expected = Folder(tmp_path), Folder(multigrid_run)
    assert run.checkpoint["iteration"] == 12
    with monkeypatch.context() as patch:
        send_before_evaluating(patch, evaluate_module, signal.SIGUSR1)
        status, error = command_line(tmp_path)
    assert status == INTERRUPTED_STATUS
    last = checkpoints.last_checkpoint(tmp_path)
    assert "interrupted: stopped by SIGUSR1" in error
    assert f"The last checkpoint is {last}." in error
    assert "Traceback" not in error
    with monkeypatch.context() as patch:
        send_before_evaluating(patch, test_module, signal.SIGINT)
        with pytest.raises(TrainingInterruptedError):
            train(tmp_path)
    assert not (tmp_path / "result.json").exists()
    train(tmp_path)
    assert_same_run(run, expected)
    seconds = run.result["seconds"]["training"]
    train(tmp_path)
    assert run.result["seconds"]["training"] == seconds
    assert_same_run(run, expected)


def test_a_worker_that_is_killed_stops_the_training_with_what_to_do(train, tmp_path):
    def kill(_: Trainer) -> None:
        for worker in multiprocessing.active_children():
            os.kill(worker.pid, signal.SIGKILL)

    with pytest.raises((RuntimeError, OSError, EOFError)) as caught:
        train(tmp_path, *PLAIN, "DATA_LOADER.NUM_WORKERS", 1, hooks=[At(8, kill)])
    assert "worker was killed" in explain_machine_error(caught.value)
    assert "00000006.pyth. Repeat the command" in caught.value.__notes__[0]
