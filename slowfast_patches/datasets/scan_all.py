"""Scan many videos in parallel, whatever some of them do to the process that scans them."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

from slowfast_patches.datasets.index_table import Entry
from slowfast_patches.datasets.scan import scan
from slowfast_patches.datasets.video_record import UnreadableVideoError

__all__ = ["FEW", "KILLER", "scan_all"]

logger = logging.getLogger(__name__)

FEW = 64
"""Fewer videos are scanned by this process before others have started, which takes 1 to 2 s."""
KILLER = "cannot be scanned: the process that tried was killed, twice"
"""The reason of a video that no process survives."""

_WAITING = 4
"""Videos handed out for each process: enough that none waits, few to look into if one dies."""

Found = Callable[[int, Entry], None]


def scan_all(
    paths: Sequence[str], found: Found, *, workers: int | None = None, guarded: bool = False
) -> None:
    """Call `found(number, entry)` for each path as soon as it is scanned, in no certain order.

    Few videos are scanned in this process, unless `guarded`; else by `workers` processes, as many
    as there are cores if that is None. When one of them is killed, what it may have been at is
    scanned again one by one; a video that kills two processes by itself is unreadable.
    """
    if not paths:
        return
    few = len(paths) < FEW and not guarded
    if few or multiprocessing.current_process().daemon:  # a daemon may not have children
        _scan_here(paths, range(len(paths)), found)
    else:
        _Scanning(paths, found).run(min(workers or _cores(), len(paths)))


class _Scanning:
    """What is left to scan, and the processes that do it."""

    def __init__(self, paths: Sequence[str], found: Found) -> None:
        self.paths, self.found = paths, found

    def run(self, workers: int) -> None:
        left = deque(range(len(self.paths)))
        while left:
            suspects = self._scan_until_killed(left, workers, _WAITING * workers)
            if (left or suspects) and not _processes_start():
                logger.warning("no other process can be started: this one scans all videos")
                _scan_here(self.paths, [*suspects, *left], self.found)
                return
            while suspects:
                for number in self._scan_until_killed(suspects, workers=1, at_once=1):
                    if self._scan_until_killed(deque([number]), workers=1, at_once=1):
                        self.found(number, Entry(reason=KILLER))

    def _scan_until_killed(self, left: deque[int], workers: int, at_once: int) -> deque[int]:
        """Scan videos, taking them from `left`, until all are, or a process is killed.

        The videos that it may have been at are returned.
        """
        flying, killed = dict[Future[Entry], int](), False
        with _pool(workers) as pool:
            while (left or flying) and not killed:
                try:
                    while left and len(flying) < at_once:
                        flying[pool.submit(_scan, self.paths[left[0]])] = left[0]
                        left.popleft()
                except (OSError, RuntimeError):  # killed, or none can be started
                    killed = True
                killed |= self._collect(flying, FIRST_COMPLETED)
            self._collect(flying, ALL_COMPLETED)
        return deque(flying.values())

    def _collect(self, flying: dict[Future[Entry], int], until: str) -> bool:
        """Hand on what has been scanned; whether something never will be."""
        failed = False
        for future in wait(flying, return_when=until).done:
            if future.exception() is None:
                self.found(flying.pop(future), future.result())
            else:
                failed = True
        return failed


def _scan(path: str) -> Entry:
    """What is found out about a video: never an error, since hours of others hang on it."""
    try:
        return Entry.of(scan(path))
    except UnreadableVideoError as error:
        return Entry(reason=str(error) or "cannot be read")
    except Exception as error:  # a fault of ours or a library's, in the one place that shows it
        return Entry(reason=f"cannot be scanned: {type(error).__name__}: {error}")


def _scan_here(paths: Sequence[str], numbers: Sequence[int], found: Found) -> None:
    for number in numbers:
        found(number, _scan(paths[number]))


def _processes_start() -> bool:
    """Whether other processes work at all: not so, for one, if a script lacks its main guard."""
    try:
        with _pool(1) as pool:
            return pool.submit(os.getpid).result() > 0
    except (OSError, RuntimeError):
        return False


def _pool(workers: int) -> ProcessPoolExecutor:
    # Not forked: this process may have threads, and a GPU.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, context, initializer=_begin)


def _begin() -> None:
    """In a new process: leave Ctrl-C to the parent, and end with it even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux
    return len(affinity(0)) if affinity else os.cpu_count() or 1
