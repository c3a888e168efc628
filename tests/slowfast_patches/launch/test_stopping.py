"""Runs that are asked to stop, or that cannot go on: what they save, say and leave."""

import logging
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import pytest
import torch

from slowfast_patches.datasets import loader as loader_module
from slowfast_patches.launch.stopping import (
    INTERRUPTED_STATUS,
    StopRequest,
    TrainingInterruptedError,
    TrainingStoppedError,
)
from slowfast_patches.train import checkpoints
from slowfast_patches.train import step as step_module
from slowfast_patches.train.record.logs import LogFile
from slowfast_patches.utils.distributed import World

pytestmark = pytest.mark.slow

ALONE = World(0, 1, torch.device("cpu"))
PLAIN = ("BN.USE_PRECISE_STATS", False, "TEST.ENABLE", False)
OFF = ("MULTIGRID.LONG_CYCLE", False, "MULTIGRID.SHORT_CYCLE", False)


def send(number: signal.Signals, pid: int | None = None) -> None:
    os.kill(pid or os.getpid(), number)


# The request.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_is_noted_and_handled_as_before_afterwards(number: signal.Signals):
    def handler(*_: object) -> None:
        heard.append(number)

    heard, before = list[signal.Signals](), signal.signal(number, handler)
    try:
        with StopRequest(ALONE) as stop:
            stop.ask()
            send(number)
            assert not stop.agreed()  # processes agree on what was so when they asked
            stop.ask()
            assert stop.agreed()
            assert stop.signal == number
        assert heard == []
        send(number)
        assert heard == [number]
    finally:
        signal.signal(number, before)


def test_an_evaluation_is_left_between_its_mini_batches():
    with StopRequest(ALONE) as stop:
        assert list(stop.between([1, 2], 2)) == [1, 2]
        batches = stop.between(range(9), 9)
        assert [next(batches), next(batches)] == [0, 1]
        send(signal.SIGTERM)
        assert next(batches) == 2
        with pytest.raises(TrainingInterruptedError, match="SIGTERM"):
            next(batches)


TWICE = """
import os, signal, torch
from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.utils.distributed import World
with StopRequest(World(0, 1, torch.device("cpu"))) as stop:
    os.kill(os.getpid(), signal.SIGINT)
    print("goes on", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    print("not reached", flush=True)
"""


def test_a_second_ctrl_c_ends_at_once_with_a_plain_message():
    done = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True)
    assert done.returncode == -signal.SIGINT
    assert done.stdout == "goes on\n"
    assert done.stderr.count("interrupted") == 2
    assert "Traceback" not in done.stderr


# Processes that read clips.


class Slow(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, number: int) -> int:
        time.sleep(0.01)
        return number


def reading() -> Iterator[object]:
    loader = loader_module._Loader(
        Slow(), num_workers=1, worker_init_fn=loader_module.leave_to_parent
    )
    return iter(loader)


def test_a_worker_outlives_signals_to_all_and_ends_with_its_loader():
    batches = reading()
    (worker,) = multiprocessing.active_children()
    signal_from_elsewhere(worker.pid)  # before it is set up, perhaps
    first = next(batches)
    signal_from_elsewhere(worker.pid)
    assert [int(first), *map(int, batches)] == list(range(40))
    worker.join(60)
    assert worker.exitcode == 0


def signal_from_elsewhere(pid: int) -> None:
    for name in ("TERM", "INT", "USR1"):
        subprocess.run(["kill", f"-{name}", str(pid)], check=True)


def test_a_worker_ends_when_its_parent_ends_it():
    batches = reading()
    (worker,) = multiprocessing.active_children()
    next(batches)
    worker.terminate()  # as torch does with one that hangs, and multiprocessing at exit
    worker.join(60)
    assert worker.exitcode == 0


# Whole runs.


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`at("step", 8, act)` calls `act()` in the ninth iteration of this process, and
    `at("evaluation", ...)` in the first mini-batch of the ninth pass of evaluating or precise BN:
    there a run asks whether it is to stop."""
    ask = StopRequest.ask

    def plan(where: str, number: int, act: Callable[[], object]) -> None:
        passes: list[object] = []

        def asking(stop: StopRequest) -> None:
            caller = sys._getframe(1)
            inside = caller.f_code.co_name == "between"
            if inside == (where == "evaluation") and not (inside and caller in passes):
                passes.append(caller)
                if len(passes) == number + 1:
                    act()
            ask(stop)

        monkeypatch.setattr(StopRequest, "ask", asking)

    return plan


def test_stopped_in_the_dry_steps_it_ends_before_the_next(
    train: Callable[..., Path], tmp_path: Path, at, monkeypatch: pytest.MonkeyPatch
):
    """A CPU has them where it compiles; here, nothing is compiled."""
    monkeypatch.setattr(step_module, "compiled", lambda model: model)
    at("step", 1, lambda: send(signal.SIGTERM))
    with pytest.raises(TrainingInterruptedError, match="SIGTERM before the dry step of"):
        train(tmp_path, "TRAIN.COMPILE", True)
    assert checkpoints.last_checkpoint(tmp_path) is None


def test_stopped_in_a_step_in_evaluations_and_in_the_test_it_ends_as_if_never_stopped(
    train: Callable[..., Path],
    multigrid_run: Path,
    tmp_path: Path,
    at,
    opened: type,
    assert_same_run: Callable[..., None],
):
    def stopped(number: signal.Signals, where: str, count: int) -> dict:
        at(where, count, lambda: send(number))
        with pytest.raises(TrainingInterruptedError, match=f"stopped by {number.name}"):
            train(tmp_path)
        return opened(tmp_path).checkpoint

    content = stopped(signal.SIGTERM, "step", 11)
    assert (content["iteration"], content["evaluation_due"]) == (12, False)
    # Precise BN, then the evaluation, each a pass; the stopped evaluation is done again.
    due = next(e["iteration"] for e in opened(multigrid_run).metrics("val") if e["iteration"] > 12)
    for number, count in ((signal.SIGUSR1, 0), (signal.SIGINT, 0), (signal.SIGTERM, 1)):
        content = stopped(number, "evaluation", count)
        assert (content["iteration"], content["evaluation_due"]) == (due, True)
        assert all(e["iteration"] < due for e in opened(tmp_path).metrics("val"))
    last, evaluations = opened(multigrid_run).result["iterations"], opened(multigrid_run).metrics
    left = sum(e["iteration"] >= due for e in evaluations("val"))
    content = stopped(signal.SIGTERM, "evaluation", 2 * left)
    assert (content["iteration"], content["evaluation_due"]) == (last, False)
    assert not (tmp_path / "result.json").exists()
    at("step", 10**6, lambda: None)
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
    train: Callable[..., Path], tmp_path: Path, at
):
    def kill() -> None:
        for worker in multiprocessing.active_children():
            send(signal.SIGKILL, worker.pid)

    at("step", 8, kill)
    keys = (*OFF, *PLAIN, "DATA_LOADER.NUM_WORKERS", 1, "TRAIN.CHECKPOINT_PERIOD", 1)
    with pytest.raises(TrainingStoppedError) as caught:
        train(tmp_path, *keys)
    message = str(caught.value)
    assert "reads clips was killed" in message
    assert "DATA_LOADER.NUM_WORKERS" in message
    assert f"he last checkpoint is {checkpoints.last_checkpoint(tmp_path)}" in message


# What the disk refuses.


def full_disk() -> TextIO:
    return Path("/dev/full").open("w")


def fill_log() -> None:
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LogFile):
            handler.setStream(full_disk())


def test_a_checkpoint_that_is_refused_stops_the_training(
    command_line: Callable[..., tuple[int, str]], tmp_path: Path, at, opened: type
):
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    at("step", 8, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, most)))
    try:
        status, error = command_line(tmp_path, *OFF, *PLAIN, "TRAIN.CHECKPOINT_PERIOD", 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
    assert status == 2
    assert "the checkpoint cannot be written after iteration 12: File too large" in error
    (last,) = (tmp_path / "checkpoints").iterdir()
    assert f"the last checkpoint is {last}, after iteration 6" in error
    assert "Traceback" not in error
    assert opened(tmp_path).checkpoint["iteration"] == 6


def test_a_training_does_not_go_on_without_its_log(
    command_line: Callable[..., tuple[int, str]], tmp_path: Path, at, opened: type
):
    at("step", 8, fill_log)
    status, error = command_line(tmp_path, *OFF, *PLAIN, "TRAIN.CHECKPOINT_PERIOD", 1)
    assert status == 2
    assert "the record of the run cannot be written after iteration 9: No space left" in error
    assert "after iteration 6. Make room in" in error
    assert "Traceback" not in error
    assert opened(tmp_path).checkpoint["iteration"] == 6


def test_what_ended_a_training_is_not_hidden_by_what_goes_wrong_afterwards(
    command_line: Callable[..., tuple[int, str]], tmp_path: Path, at
):
    def fail() -> None:
        fill_log()
        logging.getLogger().warning("lost")
        raise ZeroDivisionError("a bug")

    at("step", 3, fail)
    status, error = command_line(tmp_path, *OFF, *PLAIN)
    assert status == 1
    assert "ZeroDivisionError: a bug" in error
    assert "the record of the run cannot be written" in error
