"""Runs that are asked to stop, lose a worker, or find the disk full: saved, said, and continued."""

import logging
import multiprocessing
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pytest

from slowfast_patches.launch.stopping import TrainingInterruptedError, TrainingStoppedError
from slowfast_patches.train import checkpoints
from slowfast_patches.train import evaluate as evaluate_module
from slowfast_patches.train import result as result_module
from slowfast_patches.train import step as step_module
from slowfast_patches.train.record.log import LogFile
from slowfast_patches.train.state import Run
from slowfast_patches.utils.signals import INTERRUPTED_STATUS

pytestmark = pytest.mark.slow

PLAIN = ("BN.USE_PRECISE_STATS", False, "TEST.ENABLE", False)
OFF = ("MULTIGRID.LONG_CYCLE", False, "MULTIGRID.SHORT_CYCLE", False)


def send(number: signal.Signals, pid: int | None = None) -> None:
    os.kill(pid or os.getpid(), number)


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


def at_iteration(number: int, act: Callable[[Run], object]) -> Callable[..., None]:
    """For `before(..., Run, "train_step", ...)`."""

    def check(run: Run, step, batch: object) -> None:
        if step.iteration == number:
            act(run)

    return check


def test_stopped_in_the_dry_steps_it_ends_before_the_next(
    train: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A CPU has them where it compiles; here, nothing is compiled."""
    monkeypatch.setattr(step_module, "compiled", lambda model: model)
    tried = list[object]()

    def terminate(*given: object) -> None:
        tried.append(given)
        os.kill(os.getpid(), signal.SIGTERM)

    with (
        before(monkeypatch, step_module.Stepper, "passes", terminate),
        pytest.raises(TrainingInterruptedError, match="SIGTERM before the dry step of 16×4×23²"),
    ):
        train(tmp_path, "TRAIN.COMPILE", True)
    assert len(tried) == 2  # both of the first shape
    assert checkpoints.last_checkpoint(tmp_path) is None


def test_stopped_in_a_step_in_evaluations_and_in_the_test_it_ends_as_if_never_stopped(
    train: Callable[..., Path],
    multigrid_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    opened: type,
    assert_same_run: Callable[..., None],
):
    def ask(number: signal.Signals) -> Callable[..., None]:
        return lambda *_: send(number)

    def stopped(name: str, owner: object, function: str, act: Callable) -> dict:
        expected = pytest.raises(TrainingInterruptedError, match=f"stopped by {name}")
        with before(monkeypatch, owner, function, act), expected:
            train(tmp_path)
        return opened(tmp_path).checkpoint

    step = at_iteration(10, ask(signal.SIGTERM))  # in the eleventh: the next is the last
    content = stopped("SIGTERM", Run, "train_step", step)
    assert (content["iteration"], content["evaluation_due"]) == (12, False)
    *before_due, due, _ = opened(multigrid_run).metrics("val")
    for number, function in (
        (signal.SIGUSR1, "update_precise_bn"),
        (signal.SIGINT, "update_precise_bn"),
        (signal.SIGTERM, "evaluate"),
    ):
        content = stopped(number.name, evaluate_module, function, ask(number))
        assert (content["iteration"], content["evaluation_due"]) == (due["iteration"], True)
        evaluated = opened(tmp_path).metrics("val")
        assert len(content["evaluations"]) == len(evaluated) == len(before_due)
    last = opened(multigrid_run).result["iterations"]
    content = stopped("SIGTERM", result_module, "evaluate", ask(signal.SIGTERM))
    assert (content["iteration"], content["evaluation_due"]) == (last, False)
    assert not (tmp_path / "result.json").exists()
    train(tmp_path)
    assert_same_run(opened(tmp_path), opened(multigrid_run))


def test_a_signal_to_all_processes_of_a_run_ends_it_with_its_own_status(
    start_run_net: Callable[..., subprocess.Popen[str]], tmp_path: Path, opened: type
):
    process = start_run_net(tmp_path, *PLAIN, "DATA_LOADER.NUM_WORKERS", 2)
    wait_for_iterations(tmp_path, 2, process)
    os.killpg(process.pid, signal.SIGTERM)
    error = process.communicate(timeout=120)[1]
    assert process.returncode == INTERRUPTED_STATUS, error
    assert "Traceback" not in error
    last = checkpoints.last_checkpoint(tmp_path)
    assert f"interrupted: stopped by SIGTERM; the last checkpoint is {last}, after" in error
    assert opened(tmp_path).checkpoint["iteration"] == opened(tmp_path).metrics()[-1]["iteration"]


def wait_for_iterations(folder: Path, count: int, process: subprocess.Popen[str]) -> None:
    metrics, deadline = folder / "metrics.jsonl", time.monotonic() + 120
    while not metrics.exists() or metrics.read_text().count('"train"') < count:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_worker_that_is_killed_stops_the_training_with_what_to_do(
    train: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def kill(run: Run) -> None:
        for worker in multiprocessing.active_children():
            send(signal.SIGKILL, worker.pid)

    keys = (*OFF, *PLAIN, "DATA_LOADER.NUM_WORKERS", 1, "TRAIN.CHECKPOINT_PERIOD", 1)
    with (
        before(monkeypatch, Run, "train_step", at_iteration(8, kill)),
        pytest.raises(TrainingStoppedError) as caught,
    ):
        train(tmp_path, *keys)
    message = str(caught.value)
    assert message.startswith("a process that reads clips was killed (DataLoader worker (pid")
    assert "DATA_LOADER.NUM_WORKERS" in message
    assert f"he last checkpoint is {checkpoints.last_checkpoint(tmp_path)}" in message
    assert "after iteration 6: give the same command again" in message


# What the disk refuses.


def full_disk() -> TextIO:
    return Path("/dev/full").open("w")


def full_checkpoint(run: Run) -> None:
    run.writer.wait()
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, most))


def full_log(run: Run) -> None:
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LogFile):
            handler.setStream(full_disk())


def full_metrics(run: Run) -> None:
    run.record._lines = full_disk()


@pytest.mark.parametrize(
    ("fill", "said"),
    [
        (full_checkpoint, "the checkpoint cannot be written after iteration 12: File too large"),
        (full_log, "the record of the run cannot be written after iteration 9: No space left"),
        (full_metrics, "the record of the run cannot be written after iteration 9: No space left"),
    ],
)
def test_a_training_does_not_go_on_where_the_disk_refuses(
    command_line: Callable[..., tuple[int, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    opened: type,
    fill: Callable[[Run], None],
    said: str,
):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with before(monkeypatch, Run, "train_step", at_iteration(8, fill)):
            keys = (*OFF, *PLAIN, "TRAIN.CHECKPOINT_PERIOD", 1)
            status, error = command_line(tmp_path, *keys)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (last,) = (tmp_path / "checkpoints").iterdir()
    assert status == 2
    assert said in error
    assert f"the last checkpoint is {last}, after iteration 6" in error
    assert "Traceback" not in error
    assert opened(tmp_path).checkpoint["iteration"] == 6
