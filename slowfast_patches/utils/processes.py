"""A process pool that survives jobs that kill their process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from typing import TypeVar

import cv2

from slowfast_patches.utils.signals import held_back

__all__ = ["Died", "run_each"]

Job = TypeVar("Job")
Result = TypeVar("Result")


class Died:
    """Sentinel: the job crashed two workers."""


def run_each(
    function: Callable[[Job], Result],
    jobs: Iterable[Job],
    workers: int,
    *,
    jobs_per_worker: int = 1,
) -> Generator[tuple[Job, Result | Died]]:
    """(job, function(job)) for every job, as they end, from `workers` processes; 0 is this one.

    `jobs_per_worker` are handed out at a time: 1 if they are long, a few if they take so little
    that a worker would wait for the next one. The function is one that a module defines, and its
    errors are raised here. Where a process dies, the jobs that were handed out are done once more,
    each alone: one of which two processes died alone gives `Died`.

    However this generator ends (close it), and even if this process is killed, the workers end.
    """
    if workers == 0:
        yield from ((job, function(job)) for job in jobs)
        return
    waiting = deque(jobs)
    while waiting:
        suspects = yield from _work(function, waiting, workers, workers * jobs_per_worker)
        for job in suspects:
            for _ in range(2 if len(suspects) > 1 else 1):  # a second death that is its own
                if not (yield from _work(function, deque([job]), 1, 1)):
                    break
            else:
                yield job, Died()


def _work(
    function: Callable[[Job], Result], waiting: deque[Job], workers: int, ahead: int
) -> Generator[tuple[Job, Result], None, list[Job]]:
    """Do jobs, `ahead` of them submitted at a time; returns those in flight when a process died."""
    pending: dict[Future[Result], Job] = {}
    others = set(multiprocessing.active_children())
    # Not forked from this process, which may have threads and a GPU, but from a server that has
    # imported what is needed: all but the first start in no time.
    context = multiprocessing.get_context("forkserver")
    module = getattr(function, "func", function).__module__  # of a partial, too
    context.set_forkserver_preload([__name__, module])
    resource_tracker.ensure_running()  # which would let signals through, once it starts
    pool = ProcessPoolExecutor(workers, context, initializer=_begin)
    try:
        _try(pool)
        while True:
            while waiting and len(pending) < ahead:
                future = _submit(pool, function, waiting[0])
                pending[future] = waiting.popleft()
            if not pending:
                return []
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                result = future.result()
                yield pending.pop(future), result
    except BrokenProcessPool:
        return list(pending.values())
    finally:
        for worker in set(multiprocessing.active_children()) - others:
            worker.kill()
        pool.shutdown(wait=True, cancel_futures=True)


def _submit(
    pool: ProcessPoolExecutor, function: Callable[..., Result], *arguments: object
) -> Future[Result]:
    """Hand out a job. Ctrl-C is for this process to handle, while new ones import things, too."""
    with held_back({signal.SIGINT}):
        try:
            return pool.submit(function, *arguments)
        except OSError as error:  # it starts a process while another's death closes its pipes
            raise BrokenProcessPool(str(error)) from error


def _try(pool: ProcessPoolExecutor) -> None:
    """Raise RuntimeError if no process can begin: that is no job's fault."""
    try:
        _submit(pool, os.getpid).result()
    except (BrokenProcessPool, OSError) as error:
        raise RuntimeError(
            "no other process can be started: a script that is run needs a main guard (if __name__ "
            '== "__main__":), and this machine memory for as many processes as are asked for'
        ) from error


def _begin() -> None:
    """In a worker: one thread for each process, which ends at once when its parent does."""
    cv2.setNumThreads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
