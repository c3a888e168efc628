"""Processes that work through a list of jobs, any of which may kill the process that does it."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

import cv2

from slowfast_patches.utils.signals import held_back

__all__ = ["Died", "run_each"]

logger = logging.getLogger(__name__)

Job = TypeVar("Job")
Result = TypeVar("Result")

_DEATHS = 2
"""Processes that a job must kill before it is blamed: one may have died of something else."""
_GONE = (EOFError, OSError)
"""What is raised where a process cannot be started, or the one at the other end is dead."""


class Died:
    """In the place of a result: two processes died while they did this job."""


def run_each(
    function: Callable[[Job], Result],
    jobs: Iterable[Job],
    workers: int,
    *,
    jobs_per_worker: int = 1,
) -> Generator[tuple[Job, Result | Died]]:
    """(job, function(job)) for every job, as they end, from `workers` processes; 0 is this one.

    `jobs_per_worker` are handed out at a time: 1 if they are long, a few if they take so little
    that a worker would wait for the next one. The function is one that a module defines, and what
    it raises is raised here. A job whose process dies is done once more.

    However this generator ends (close it), and even if this process is killed, no worker goes on.
    Where no process can be started, as in a daemonic one or in a script without a main guard, this
    process does the jobs itself.
    """
    waiting, deaths = deque(enumerate(jobs)), Counter[int]()
    crew: list[_Worker[Job]] = []
    is_daemon = multiprocessing.current_process().daemon
    wanted = 0 if is_daemon else workers
    try:
        while wanted and (waiting or any(worker.jobs for worker in crew)):
            wanted = _hand_out(function, waiting, crew, wanted, jobs_per_worker)
            news = wait([worker.connection for worker in crew]) if crew else []
            for worker in [worker for worker in crew if worker.connection in news]:
                is_alive = yield from _listen(worker, waiting, deaths)
                if not is_alive:
                    crew.remove(worker)
                    wanted -= not worker.has_begun
    finally:
        for worker in crew:
            worker.end()
    if waiting and workers and not is_daemon:
        logger.warning("no other process can be started: this one does all the work")
    for _, job in waiting:
        yield job, function(job)


class _Worker(Generic[Job]):
    """A process, and the jobs that were handed to it, of which it does the first."""

    def __init__(self, function: Callable[[Job], object]) -> None:
        # Not forked from this process, which may have threads and a GPU, but from a server that has
        # imported what is needed: all but the first start in no time, those for other jobs too.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, function.__module__])
        self.jobs, self.has_begun = deque[tuple[int, Job]](), False
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(function, theirs), daemon=True)
        resource_tracker.ensure_running()  # which would let signals through, once it starts
        # Nobody else shall hold their end: when the process dies, the pipe has one. And Ctrl-C is
        # for this process to handle, while those still import things, too.
        with theirs, held_back({signal.SIGINT}):
            self.process.start()

    def give(self, job: tuple[int, Job]) -> None:
        self.jobs.append(job)
        with contextlib.suppress(OSError):  # dead: its pipe says so when it is read
            self.connection.send(job[1])

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def _hand_out(
    function: Callable[[Job], object],
    waiting: deque[tuple[int, Job]],
    crew: list[_Worker[Job]],
    wanted: int,
    jobs_per_worker: int,
) -> int:
    """Give jobs to workers, started if need be; how many of these there can be."""
    while waiting and len(crew) < wanted:
        try:
            crew.append(_Worker(function))
        except _GONE:
            wanted = len(crew)
        else:
            crew[-1].give(waiting.popleft())
    while waiting and crew:
        least = min(crew, key=lambda worker: len(worker.jobs))
        if len(least.jobs) >= jobs_per_worker:
            break
        least.give(waiting.popleft())
    return wanted


def _listen(
    worker: _Worker[Job], waiting: deque[tuple[int, Job]], deaths: Counter[int]
) -> Generator[tuple[Job, Any], None, bool]:
    """Pass on what a worker has to say; whether it is alive. If not, its jobs wait again."""
    try:
        message = worker.connection.recv()
    except _GONE:
        worker.end()
        if worker.jobs and worker.has_begun:
            number, job = worker.jobs[0]
            deaths[number] += 1
            if deaths[number] == _DEATHS:
                worker.jobs.popleft()
                yield job, Died()
        waiting.extendleft(reversed(worker.jobs))
        return False
    if message is None:
        worker.has_begun = True
        return True
    _, job = worker.jobs.popleft()
    result, error = message
    if error is not None:
        raise error
    yield job, result
    return True


def _work(function: Callable[[Any], object], parent: Connection[Any, Any]) -> None:
    """A worker: says None once it has begun, then (result, error) for each job."""
    cv2.setNumThreads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(*_GONE):  # the parent's end
        parent.send(None)
        while True:
            job = parent.recv()
            try:
                answer: tuple[object, Exception | None] = (function(job), None)
            except Exception as error:
                error.add_note(f"in a worker: {traceback.format_exc()}")
                answer = (None, error)
            parent.send(answer)


def _end_with_parent() -> None:
    """End this process at once when its parent does, be it killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
