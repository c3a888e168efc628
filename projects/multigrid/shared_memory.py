"""Room for mini-batches in /dev/shm, through which data loader workers pass them on."""

from __future__ import annotations

import math
import os


def fit_workers(
    workers: int, batch_bytes: int, *, processes: int = 1, prefetch: int = 2
) -> tuple[int, str]:
    """Return how many data loader workers have room in /dev/shm for their mini-batches.

    If a training is slower than its workers, /dev/shm contains all mini-batches that they have
    loaded in advance, and the mini-batch in use. Docker limits /dev/shm to 64 MB by default.

    Args:
        workers: Number of workers of each process.
        batch_bytes: Size of the largest mini-batch of a process in bytes.
        processes: Number of training processes on this machine.
        prefetch: Number of mini-batches that each worker loads in advance.

    Returns:
        (fitting, text). `fitting` is a number from 0 to `workers`. 0 workers need no shared memory.
        `text` describes the shortage and how to end it, and is "" if all workers fit.
    """
    free = _free_bytes() / processes
    if free >= (workers * prefetch + 1) * batch_bytes or not workers:
        return workers, ""
    fitting = max(0, int(free // batch_bytes) - 1) // prefetch
    needed = processes * (workers * prefetch + 1) * batch_bytes
    return fitting, (
        f"/dev/shm has {_mega(processes * free)} free, which is enough for {fitting} instead of "
        f"{workers} data loader workers, because a mini-batch has up to {_mega(batch_bytes)}. "
        f"Enlarge /dev/shm, for example with docker run --shm-size {math.ceil(needed / 2**20)}m"
    )


def _free_bytes() -> float:
    """Return the free bytes in /dev/shm, or infinity if it has no limit."""
    try:
        status = os.statvfs("/dev/shm")
    except OSError:  # macOS has no /dev/shm
        return math.inf
    return status.f_bavail * status.f_frsize if status.f_blocks else math.inf


def _mega(size: float) -> str:
    return f"{size / 2**20:,.0f} MB" if size >= 2**20 else f"{size / 2**20:.2g} MB"
