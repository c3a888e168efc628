"""Runs that are stopped or fail: their checkpoints, messages and files."""

import multiprocessing
import os
import signal
import subprocess
from datetime import timedelta
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from slowfast_patches.datasets import loader as loader_module
from slowfast_patches.launch import stopping
from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.utils.distributed import World
from slowfast_patches.utils.interruption import TrainingInterruptedError
from slowfast_patches.utils.signals import interruptible, users_handlers

ALONE = World(0, 1, torch.device("cpu"))


# The request.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_is_noted_and_handled_as_before_afterwards(number):
    def handler(*_: object) -> None:
        heard.append(number)

    heard, before = list[signal.Signals](), signal.signal(number, handler)
    try:
        with StopRequest(ALONE) as stop:
            stop.ask()
            signal.raise_signal(number)
            assert not stop.agreed()  # processes agree on what was so when they asked
            stop.ask()
            with pytest.raises(TrainingInterruptedError, match=number.name):
                stop.check()
        assert heard == []
        signal.raise_signal(number)
        assert heard == [number]
    finally:
        signal.signal(number, before)


def test_a_handler_of_the_user_is_called_too_and_restored():
    def handler(number: int, _: object) -> None:
        heard.append(number)

    heard, before = list[int](), signal.signal(signal.SIGUSR1, handler)
    try:
        with users_handlers(), interruptible(), StopRequest(ALONE) as stop:
            signal.raise_signal(signal.SIGUSR1)
            assert (heard, stop.asked) == ([signal.SIGUSR1], signal.SIGUSR1)
        assert signal.getsignal(signal.SIGUSR1) is handler
        with users_handlers(), pytest.raises(TrainingInterruptedError), interruptible():
            signal.raise_signal(signal.SIGUSR1)
        assert heard == [signal.SIGUSR1] * 2
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_ctrl_c_that_a_launcher_has_already_passed_on_is_no_second_one():
    with StopRequest(ALONE) as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        stop.ask()
        assert stop.agreed()


def test_an_evaluation_is_left_between_its_mini_batches():
    with StopRequest(ALONE) as stop:
        assert list(stop.between([1, 2], 2)) == [1, 2]
        batches = stop.between(range(9), 9)
        assert [next(batches), next(batches)] == [0, 1]
        signal.raise_signal(signal.SIGTERM)
        assert next(batches) == 2
        with pytest.raises(TrainingInterruptedError, match="SIGTERM"):
            next(batches)


# A process that reads clips.


def send_from_elsewhere(pid: int) -> None:
    for name in ("TERM", "INT", "USR1"):
        subprocess.run(["kill", f"-{name}", str(pid)], check=True)


def test_a_worker_outlives_signals_to_all_and_ends_with_its_loader():
    videos = [{"labels": number} for number in range(40)]
    batches = iter(
        loader_module._Loader(videos, num_workers=1, worker_init_fn=loader_module.leave_to_parent)
    )
    (worker,) = multiprocessing.active_children()
    send_from_elsewhere(worker.pid)  # before it is set up, perhaps
    first = next(batches)
    send_from_elsewhere(worker.pid)
    assert [int(batch["labels"]) for batch in (first, *batches)] == list(range(40))
    worker.join(60)
    assert worker.exitcode == 0


def wish(rank: int) -> None:
    dist.init_process_group("gloo")
    with StopRequest(World(rank, 2, torch.device("cpu"))) as stop:
        assert stop.any_of(rank == 1, False, True) == [True, False, True]
        assert stop.any_of(False) == [False]
    dist.destroy_process_group()


@pytest.mark.slow("starts processes")
def test_what_one_process_wishes_all_know(run_ranks):
    run_ranks(2, wish)


# Several processes, of which the others are a stand-in.


class Others:
    """Stand-in for torch.distributed: other processes say `flags`, which are there after `wait`."""

    ReduceOp = dist.ReduceOp

    def __init__(self) -> None:
        self.groups, self.flags, self.operations = [], [0], []

    def new_group(self, **options):
        self.groups.append(options)
        return "group"

    def all_reduce(self, tensor, operation, group=None, async_op=False):
        assert group == "group"
        self.operations.append((operation, async_op))
        total = torch.maximum(tensor, torch.tensor(self.flags, dtype=tensor.dtype))
        if not async_op:
            tensor.copy_(total)
        return mock.Mock(wait=lambda: tensor.copy_(total))


@pytest.fixture
def others(monkeypatch):
    found = Others()
    monkeypatch.setattr(stopping, "dist", found)
    before = {number: signal.getsignal(number) for number in stopping.STOP_SIGNALS}
    yield found
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_request_of_another_process_is_known_after_the_next_ask(others):
    timeout = timedelta(seconds=9)
    with StopRequest(World(1, 2, torch.device("cpu")), timeout) as stop:
        assert others.groups == [{"backend": "gloo", "timeout": timeout}]
        stop.ask()
        others.flags = [signal.SIGUSR1]
        assert not stop.agreed()
        stop.ask()
        with pytest.raises(TrainingInterruptedError, match=r"^stopped by SIGUSR1 after it$"):
            stop.check("after it")
        assert others.operations == [(dist.ReduceOp.MAX, True)] * 2


def test_a_request_is_known_although_nobody_looked_before_the_next_ask(others):
    with StopRequest(World(1, 2, torch.device("cpu"))) as stop:
        others.flags = [signal.SIGTERM]
        stop.ask()
        others.flags = [0]
        stop.ask()
        assert stop.agreed()


def test_flags_are_true_if_they_are_in_any_process(others):
    others.flags = [0, 1, 1]
    with StopRequest(World(0, 2, torch.device("cpu"))) as stop:
        assert stop.any_of(False, False, True) == [False, True, True]
        assert others.operations == [(dist.ReduceOp.MAX, False)]
    with StopRequest(ALONE) as stop:
        assert stop.any_of(False, True) == [False, True]
        assert len(others.groups) == 1, "one process needs no group"


def test_several_processes_keep_their_handlers_to_the_end_unless_one_fails(others):
    def handler(*_: object) -> None:
        pass

    signal.signal(signal.SIGTERM, handler)
    with StopRequest(World(0, 2, torch.device("cpu"))):
        pass
    assert signal.getsignal(signal.SIGTERM) is not handler
    signal.signal(signal.SIGTERM, handler)
    with pytest.raises(ArithmeticError), StopRequest(World(0, 2, torch.device("cpu"))):
        raise ArithmeticError
    assert signal.getsignal(signal.SIGTERM) is handler


@pytest.mark.parametrize(("rank", "told"), [(0, True), (1, False)])
def test_ctrl_c_is_answered_by_one_process_and_ends_all_at_once_if_repeated(
    others, monkeypatch, capfd, rank, told
):
    killed = []
    monkeypatch.setattr(stopping.os, "kill", lambda *given: killed.append(given))
    with StopRequest(World(rank, 2, torch.device("cpu"))) as stop:
        signal.raise_signal(signal.SIGINT)
        assert ("Press Ctrl-C again to exit now" in capfd.readouterr().err) is told
        assert (stop.asked, killed) == (signal.SIGINT, [])
        signal.raise_signal(signal.SIGINT)
        assert killed == [(os.getpid(), signal.SIGINT)]
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL


def test_a_part_of_a_run_begins_unless_it_was_to_stop():
    with StopRequest(ALONE) as stop:
        stop.begin("the test")
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(TrainingInterruptedError, match="stopped by SIGTERM before the test"):
            stop.begin("the test")
