"""Process pool that continues if a job crashes its worker process."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

import cv2

from slowfast_patches.utils.errors import RunError

_PR_SET_PDEATHSIG = 1
"""Option of prctl, from linux/prctl.h."""
Job = TypeVar("Job")
Result = TypeVar("Result")

_SAFE_PATH = "PYTHONSAFEPATH"
"""Environment variable with which Python does not import files of the current folder."""


class WorkerCrashed:
    """Result of a job that crashed two worker processes in which it ran alone."""


def run_each(
    function: Callable[[Job], Result],
    jobs: Iterable[Job],
    workers: int,
    *,
    jobs_per_worker: int = 1,
) -> Generator[tuple[Job, Result | WorkerCrashed]]:
    """Call a function on each job in worker processes.

    If a worker crashes, all submitted jobs run again, one at a time, because any of them may have
    caused the crash. If a job then crashes two workers, its result is `WorkerCrashed`. If the
    function raises an error, this generator raises the same error. The workers end when the
    generator is closed, and also when this process is killed.

    Args:
        function: Function to call. It must be picklable, so define it at the top level of a module.
        jobs: Arguments of the calls. They must be picklable.
        workers: Number of worker processes. 0 means to run the jobs in this process.
        jobs_per_worker: Number of jobs to submit per worker in advance. Use more than 1 for short
            jobs, so that workers need not wait for the next job.

    Yields:
        (job, result), in the order in which the jobs end.

    Raises:
        RunError: No worker process can be started.
    """
    if workers == 0:
        yield from ((job, function(job)) for job in jobs)
        return
    waiting = deque(jobs)
    while waiting:
        suspects = yield from _work(function, waiting, workers, workers * jobs_per_worker)
        for job in suspects:
            for _ in range(2):
                if not (yield from _work(function, deque([job]), 1, 1)):
                    break
            else:
                yield job, WorkerCrashed()


def _work(
    function: Callable[[Job], Result], waiting: deque[Job], workers: int, ahead: int
) -> Generator[tuple[Job, Result], None, list[Job]]:
    """Run jobs in a process pool, and yield (job, result).

    Args:
        function: Function to call on each job.
        waiting: Jobs to run. Submitted jobs are removed.
        workers: Number of worker processes.
        ahead: Maximum number of jobs that are submitted at the same time.

    Returns:
        The unfinished jobs at the time when a worker crashed. Empty if no worker crashed.
    """
    pending: dict[Future[Result], Job] = {}
    others = set(multiprocessing.active_children())
    # This process must not be forked, because it may have threads and use a GPU.
    # A fork server imports the modules only once, so that further workers start quickly.
    context = multiprocessing.get_context("forkserver")
    module = getattr(function, "func", function).__module__  # `function` may be a partial.
    context.set_forkserver_preload([__name__, module])
    with safe_path():  # the queues of the pool also start a process
        pool = ProcessPoolExecutor(workers, context, initializer=_begin)
    try:
        with safe_path():
            _try(pool)
        while waiting or pending:
            while waiting and len(pending) < ahead:
                future = pool.submit(function, waiting[0])
                pending[future] = waiting.popleft()
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                result = future.result()
                yield pending.pop(future), result
    except BrokenProcessPool:
        return list(pending.values())
    finally:
        for worker in set(multiprocessing.active_children()) - others:
            worker.kill()
        pool.shutdown(wait=True, cancel_futures=True)
    return []


@contextmanager
def safe_path() -> Iterator[None]:
    """Prevent new Python processes from importing files of the current folder.

    multiprocessing starts Python with the option -c. It would import a random.py or a queue.py that
    lies beside the user's videos in place of Python's own module.
    """
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        forget_safe_path()
        if before is not None:
            os.environ[_SAFE_PATH] = before


def forget_safe_path() -> None:
    """Undo `safe_path` in a started process, so that it starts other programs as usual."""
    os.environ.pop(_SAFE_PATH, None)


def _try(pool: ProcessPoolExecutor) -> None:
    """Raise RunError if the pool cannot start worker processes."""
    try:
        pool.submit(os.getpid).result()
    except (BrokenProcessPool, OSError) as error:
        raise RunError(
            "worker processes cannot be started. Check that the script has a main guard (if "
            '__name__ == "__main__":), and that the machine has enough memory.'
        ) from error


def end_with_parent() -> Callable[[], None] | None:
    """Return a function for `preexec_fn` that makes a child process end with this process.

    When this process ends in any way, the child gets SIGTERM. Only on Linux. Elsewhere, return
    None.
    """
    parent = os.getpid()
    prctl = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None
    if prctl is None:
        return None

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it has ended before
            os._exit(1)

    return prepare


def _begin() -> None:
    """Initialise a worker process: use one OpenCV thread, and exit when the parent exits."""
    forget_safe_path()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is sent to all processes.
    cv2.setNumThreads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
