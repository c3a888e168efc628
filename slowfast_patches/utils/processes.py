"""Process pool that survives jobs that kill their process."""

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

from slowfast_patches.utils.signals import block_signals

Job = TypeVar("Job")
Result = TypeVar("Result")


class WorkerCrashed:
    """Result of a job that crashed two workers."""


def run_each(
    function: Callable[[Job], Result],
    jobs: Iterable[Job],
    workers: int,
    *,
    jobs_per_worker: int = 1,
) -> Generator[tuple[Job, Result | WorkerCrashed]]:
    """Call a function on each job in worker processes.

    If a worker dies, all submitted jobs run again, one at a time. A job that then kills its worker
    again has the result `WorkerCrashed`. Errors of the function are raised here. The workers end
    when the generator is closed, and even when this process is killed.

    Args:
        function: Function of a module. It must be picklable.
        jobs: Jobs, also picklable.
        workers: Number of processes. 0 runs the jobs in this process.
        jobs_per_worker: Number of jobs submitted per worker at a time. Use more than 1 for short
            jobs, so that workers do not wait for the next one.

    Yields:
        (job, result) in the order in which jobs end.
    """
    if workers == 0:
        yield from ((job, function(job)) for job in jobs)
        return
    waiting = deque(jobs)
    while waiting:
        suspects = yield from _work(function, waiting, workers, workers * jobs_per_worker)
        for job in suspects:
            for _ in range(2 if len(suspects) > 1 else 1):  # A second crash is its own fault.
                if not (yield from _work(function, deque([job]), 1, 1)):
                    break
            else:
                yield job, WorkerCrashed()


def _work(
    function: Callable[[Job], Result], waiting: deque[Job], workers: int, ahead: int
) -> Generator[tuple[Job, Result], None, list[Job]]:
    """Yield the results of jobs, `ahead` of which are submitted at a time.

    Returns:
        The jobs that were submitted when a worker died, if one did.
    """
    pending: dict[Future[Result], Job] = {}
    others = set(multiprocessing.active_children())
    # This process may have threads and a GPU, so it must not be forked. A fork server with the
    # modules imported starts all workers but the first in no time.
    context = multiprocessing.get_context("forkserver")
    module = getattr(function, "func", function).__module__  # Also of a partial.
    context.set_forkserver_preload([__name__, module])
    resource_tracker.ensure_running()  # Starting it later would unblock signals.
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
    """Submit a job with SIGINT blocked, so that new workers leave it to this process."""
    with block_signals({signal.SIGINT}):
        try:
            return pool.submit(function, *arguments)
        except OSError as error:  # A dying worker closed the pipes meanwhile.
            raise BrokenProcessPool(str(error)) from error


def _try(pool: ProcessPoolExecutor) -> None:
    """Check that worker processes can start at all.

    Raises:
        RuntimeError: They cannot.
    """
    try:
        _submit(pool, os.getpid).result()
    except (BrokenProcessPool, OSError) as error:
        raise RuntimeError(
            "no other process can be started. A script needs a main guard (if __name__ == "
            '"__main__":), and the machine needs memory for all workers.'
        ) from error


def _begin() -> None:
    """Initialise a worker: use one OpenCV thread, and exit when the parent exits."""
    cv2.setNumThreads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
