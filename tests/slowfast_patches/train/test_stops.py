"""Runs that are killed, asked to stop, lose a worker, or find the disk full: saved, said, continued
as if never stopped, bit for bit; tests/faults kills for it."""

import multiprocessing
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slowfast_patches.train import checkpoint as checkpoints
from slowfast_patches.train import evaluate as evaluate_module
from slowfast_patches.train import result as result_module
from slowfast_patches.train import step as step_module
from slowfast_patches.train.record.log_metrics import LogMetrics
from slowfast_patches.train.trainer import Trainer
from slowfast_patches.utils.errors import (
    INTERRUPTED_STATUS,
    TrainingInterruptedError,
    explain_machine_error,
)
from tests.conftest import mount_small_shm, needs_mount
from tests.slowfast_patches.train.conftest import At, hooked, save_and_die

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


def test_stopped_anywhere_it_ends_as_if_never_stopped(
    train: Callable[..., Path],
    command_line: Callable[..., tuple[int, str]],
    multigrid_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    opened: type,
    assert_same_run: Callable[..., None],
):
    records, (*before_due, due, _) = map(opened(multigrid_run).metrics, ("train", "val"))

    def stopped(owner: object, function: str, act: Callable) -> dict:
        with (
            before(monkeypatch, owner, function, act),
            pytest.raises(TrainingInterruptedError),
        ):
            train(tmp_path)
        return opened(tmp_path).checkpoint

    # Killed in the middle of epoch, phase and short cycle.
    assert records[6]["phase"] == records[7]["phase"]
    assert 7 % 3 != 0 < records[7]["epoch"] % 1
    with hooked(At(7, save_and_die)), pytest.raises(SystemExit):
        train(tmp_path)
    assert opened(tmp_path).checkpoint["iteration"] == 7
    # Asked after the eleventh iteration: the next is the last.
    with hooked(At(11, lambda _: send(signal.SIGTERM))):
        status, error = command_line(tmp_path, "DATA_LOADER.NUM_WORKERS", 1)
    content, last = opened(tmp_path).checkpoint, checkpoints.last_checkpoint(tmp_path)
    assert (status, content["iteration"]) == (INTERRUPTED_STATUS, 12)
    assert f"interrupted: stopped by SIGTERM\nThe last checkpoint is {last}, after" in error
    assert "Traceback" not in error
    for number, function in ((signal.SIGUSR1, "update_precise_bn"), (signal.SIGINT, "evaluate")):

        def ask(*_: object, number: signal.Signals = number) -> None:
            send(number)

        content = stopped(evaluate_module, function, ask)
        assert content["iteration"] == due["iteration"]
        evaluated = opened(tmp_path).metrics("val")
        assert len(content["evaluations"]) == len(evaluated) == len(before_due)
    content = stopped(result_module, "evaluate", lambda *_: send(signal.SIGTERM))
    assert (content["iteration"], len(content["evaluations"])) == (
        len(records),
        len(before_due) + 2,
    )
    assert not (tmp_path / "result.json").exists()
    train(tmp_path)
    said = re.findall(r"Resuming after iteration (\d+)", opened(tmp_path).log)
    assert said == ["7", "12", *[str(due["iteration"])] * 2, *[str(len(records))]]
    assert_same_run(opened(tmp_path), opened(multigrid_run))


def test_a_finished_run_is_not_trained_again_and_one_that_starts_over_keeps_its_checkpoints_apart(
    train: Callable[..., Path],
    multigrid_run: Path,
    tmp_path: Path,
    opened: type,
    assert_same_run: Callable[..., None],
):
    folder = opened(shutil.copytree(multigrid_run, tmp_path / "copy"))
    train(folder.path)
    assert_same_run(folder, opened(multigrid_run))
    expected = opened(multigrid_run).result
    differing = ("date", "config")
    found = folder.result
    found["seconds"]["testing"] = expected["seconds"]["testing"]  # the test is repeated
    assert found | {key: expected[key] for key in differing} == expected
    train(folder.path, *PLAIN, *SHORT, "TRAIN.AUTO_RESUME", False)
    assert len(list(folder.path.glob("checkpoints_before_1/*.pyth"))) > 1
    assert folder.checkpoint["iteration"] == folder.result["iterations"] == 6
    assert [r["iteration"] for r in folder.metrics()] == [1, 2, 3, 4, 5, 6]


def test_stopped_in_the_dry_steps_it_ends_before_the_next(
    train: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A CPU has them where it compiles; here, nothing is compiled."""
    monkeypatch.setattr(step_module, "compiled", lambda model, mode: model)
    tried = list[object]()

    def terminate(*given: object) -> None:
        tried.append(given)
        send(signal.SIGTERM)

    with (
        before(monkeypatch, step_module.Stepper, "forward_backward", terminate),
        pytest.raises(TrainingInterruptedError, match="SIGTERM before the dry step of"),
    ):
        train(tmp_path, "TRAIN.COMPILE", True)
    assert len(tried) == 1
    assert checkpoints.last_checkpoint(tmp_path) is None


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
    assert "after iteration 6. Repeat the command" in caught.value.__notes__[0]


def train_with_little_room(rank: int, train: Callable[..., Path], folder: Path) -> None:
    mount_small_shm("200k")
    train(folder, *PLAIN, *SHORT, "DATA_LOADER.NUM_WORKERS", 2, "TEST.ENABLE", True)


@needs_mount
def test_with_a_small_dev_shm_it_trains_without_workers(
    train: Callable[..., Path], run_ranks: Callable[..., None], tmp_path: Path, opened: type
):
    run_ranks(1, train_with_little_room, train, tmp_path)
    assert opened(tmp_path).log.count("NUM_WORKERS is reduced from 2 to 0. /dev/shm has") == 2
    assert opened(tmp_path).result["finished"]


# What the disk refuses.


def test_a_training_does_not_go_on_where_the_disk_refuses(
    command_line: Callable[..., tuple[int, str]], tmp_path: Path, opened: type
):
    """Its metrics; test_checkpoint.py is about checkpoints."""

    def fill(trainer: Trainer) -> None:
        log = next(hook for hook in trainer.hooks if isinstance(hook, LogMetrics))
        log._lines = open("/dev/full", "w")  # noqa: SIM115

    with hooked(At(7, fill)):
        status, error = command_line(tmp_path, *PLAIN)
    (last,) = (tmp_path / "checkpoints").iterdir()
    assert status == 2
    assert "A disk is full (OSError: [Errno 28] No space left on device). Free space" in error
    assert f"The last checkpoint is {last}, after iteration 6" in error
    assert "Traceback" not in error
    assert opened(tmp_path).checkpoint["iteration"] == 6
