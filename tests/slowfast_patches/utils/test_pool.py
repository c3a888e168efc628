"""Jobs in a pool whose workers are made up, so that they start at once and crash on demand."""

from __future__ import annotations

import os
import signal
from collections import Counter
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from typing import ClassVar

import pytest

from slowfast_patches.utils import processes
from slowfast_patches.utils.errors import RunError
from slowfast_patches.utils.processes import WorkerCrashed, end_with_parent, run_each, safe_path


class Pool:
    """Runs each job where it is submitted. After a crash, it is broken."""

    made: ClassVar[list[Pool]] = []
    starts = True

    def __init__(self, workers, context, initializer) -> None:
        self.workers, self.broken, self.most, self.ended = workers, False, 0, False
        self.open = list[Future]()
        self.safe = os.environ.get("PYTHONSAFEPATH")
        Pool.made.append(self)

    def submit(self, function, *job):
        future = Future()
        self.open = [f for f in self.open if f is not future]
        if function is os.getpid and not Pool.starts:
            future.set_exception(BrokenProcessPool())
            return future
        try:
            if self.broken:
                raise BrokenProcessPool
            future.set_result(function(*job))
        except BrokenProcessPool as error:
            self.broken = True
            future.set_exception(error)
        except ZeroDivisionError as error:
            future.set_exception(error)
        return future

    def shutdown(self, wait, cancel_futures) -> None:
        assert wait
        assert cancel_futures
        self.ended = True


@pytest.fixture(autouse=True)
def _made_up(monkeypatch):
    monkeypatch.setattr(processes, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(Pool, "made", [])
    monkeypatch.setattr(Pool, "starts", True)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)


CALLS = Counter()


def work(job):
    CALLS[job] += 1
    if job == "zero":
        return 1 / 0
    if job == "kills" or (job == "once" and CALLS[job] == 1):
        raise BrokenProcessPool
    return job * 2


def test_jobs_of_a_crash_run_again_and_only_the_one_that_crashes_alone_is_blamed():
    CALLS.clear()
    jobs = ["a", "kills", "b", "once", "c", "d"]
    found = dict(run_each(work, jobs, 2, jobs_per_worker=2))
    assert isinstance(found.pop("kills"), WorkerCrashed)
    assert found == {"a": "aa", "b": "bb", "once": "onceonce", "c": "cc", "d": "dd"}
    assert CALLS["kills"] == 3, "once beside others, and twice alone"
    assert {pool.workers for pool in Pool.made} == {1, 2}
    assert all(pool.ended and pool.safe == "1" for pool in Pool.made)
    assert "PYTHONSAFEPATH" not in os.environ


def test_jobs_are_submitted_a_little_ahead():
    """Two workers with two jobs each have four, until the first result is taken."""
    CALLS.clear()
    results = run_each(work, "abcdefg", 2, jobs_per_worker=2)
    next(results)
    assert CALLS.total() == 4
    assert len(list(results)) == 6


def test_without_workers_jobs_run_here_in_their_order():
    assert list(run_each(work, ["a", "b"], 0)) == [("a", "aa"), ("b", "bb")]
    assert Pool.made == []
    assert list(run_each(work, [], 2)) == []


def test_an_error_of_a_job_is_raised_and_ends_the_pool():
    with pytest.raises(ZeroDivisionError):
        list(run_each(work, ["a", "zero"], 2))
    assert [pool.ended for pool in Pool.made] == [True]


def test_workers_that_cannot_be_started_are_explained(monkeypatch):
    monkeypatch.setattr(Pool, "starts", False)
    with pytest.raises(RunError, match=r"worker processes cannot be started.*main guard"):
        list(run_each(work, ["a"], 1))


def test_a_safe_path_that_the_user_has_set_stays(monkeypatch):
    monkeypatch.setenv("PYTHONSAFEPATH", "yes")
    with safe_path():
        assert os.environ["PYTHONSAFEPATH"] == "1"
    assert os.environ["PYTHONSAFEPATH"] == "yes"


def test_a_child_asks_for_a_signal_when_its_parent_ends(monkeypatch):
    asked, ended = list[tuple](), list[int]()
    library = type("Library", (), {"prctl": staticmethod(lambda *a: asked.append(a))})
    monkeypatch.setattr(processes.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(processes.os, "_exit", ended.append)
    prepare = end_with_parent()
    monkeypatch.setattr(processes.os, "getppid", os.getpid)
    prepare()
    assert (asked, ended) == ([(1, signal.SIGTERM, 0, 0, 0)], [])
    monkeypatch.setattr(processes.os, "getppid", lambda: 1)
    prepare()
    assert ended == [1]
    monkeypatch.setattr(processes.sys, "platform", "darwin")
    assert end_with_parent() is None


def test_a_worker_ends_with_its_parent_and_leaves_ctrl_c_to_it(monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    joined, ended, threads = list[str](), list[int](), list[int]()
    parent = type("Parent", (), {"join": staticmethod(lambda: joined.append("joined"))})
    monkeypatch.setattr(processes.multiprocessing, "parent_process", lambda: parent)
    monkeypatch.setattr(processes.os, "_exit", ended.append)
    monkeypatch.setattr(processes.cv2, "setNumThreads", threads.append)
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    started = list[dict]()

    class Thread:
        def __init__(self, target, daemon) -> None:
            started.append({"daemon": daemon})
            self.start = target

    monkeypatch.setattr(processes.threading, "Thread", Thread)
    try:
        processes._begin()
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert (joined, ended, threads, started) == (["joined"], [1], [1], [{"daemon": True}])
    assert "PYTHONSAFEPATH" not in os.environ
