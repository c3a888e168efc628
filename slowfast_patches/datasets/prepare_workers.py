"""Processes that work through a list of jobs, and may die of one."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

import cv2

__all__ = ["Died", "run_each"]

Job = TypeVar("Job")
Result = TypeVar("Result")


class Died(Generic[Job]):
    """In the place of a result: the process died of the job, twice."""


def run_each(
    function: Callable[[Job], Result], jobs: Iterable[Job], workers: int
) -> Generator[tuple[Job, Result | Died[Job]]]:
    """(job, function(job)) for every job, as they end, from `workers` processes.

    When a process dies, the jobs under way are done again one at a time, which tells the one that
    kills it from the others. What `function` raises is raised here. However this generator ends
    (close it), and even if this process is killed, no worker goes on.
    """
    waiting = deque(jobs)
    while waiting:
        suspects = deque((yield from _until_one_dies(function, waiting, workers)))
        while suspects:
            killers = yield from _until_one_dies(function, suspects, 1)
            yield from ((job, Died()) for job in killers)


def _until_one_dies(
    function: Callable[[Job], Result], waiting: deque[Job], workers: int
) -> Generator[tuple[Job, Result | Died[Job]], None, list[Job]]:
    """Work through `waiting`; the jobs under way when a process died, or none at the end."""
    running, lost, broken = dict[Future[Result], Job](), list[Job](), False
    with _pool(workers) as pool:
        while running or (waiting and not broken):
            while waiting and not broken and len(running) < workers:
                try:
                    running[pool.submit(function, waiting[0])] = waiting[0]
                    waiting.popleft()
                except BrokenProcessPool:
                    broken = True
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job = running.pop(future)
                try:
                    result = future.result()
                except BrokenProcessPool:
                    broken = True
                    lost.append(job)
                    continue
                yield job, result
    return lost


@contextlib.contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes that end at once when the block is left by an exception."""
    # A fork of this process could hang, as it has threads; the server's processes start in no time.
    context = get_context("forkserver")
    context.set_forkserver_preload(["slowfast_patches.datasets.prepare"])
    ours, theirs = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, context, _set_up, (ours,))
    try:
        yield pool
    except BaseException:
        theirs.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        theirs.close()
        ours.close()


def _set_up(parent: Connection[Any, Any]) -> None:
    """One thread of work; Ctrl-C is for the parent to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cv2.setNumThreads(1)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Connection[Any, Any]) -> None:
    """End this process when the other end of the pipe is closed, be it by the parent's death."""
    parent.poll(None)
    os._exit(1)
