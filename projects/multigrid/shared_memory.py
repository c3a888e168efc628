"""Size of /dev/shm, the shared memory through which data loader workers pass mini-batches."""

from __future__ import annotations

import math
import os

_MEGA = 2**20


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
        `text` describes the shortage and how to fix it. It is "" if all workers fit.
    """
    try:
        status = os.statvfs("/dev/shm")
    except OSError:  # macOS has no /dev/shm
        return workers, ""
    if not workers or not status.f_blocks:  # a tmpfs without a limit has 0 blocks
        return workers, ""
    needed = (workers * prefetch + 1) * batch_bytes
    free = status.f_bavail * status.f_frsize / processes
    if free >= needed:
        return workers, ""
    fitting = max(0, int(free // batch_bytes) - 1) // prefetch
    return fitting, (
        f"/dev/shm has {processes * free / _MEGA:.2f} MB free, which is enough for {fitting} "
        f"instead of {workers} data loader workers, because a mini-batch has up to "
        f"{batch_bytes / _MEGA:.2f} MB. Enlarge /dev/shm, for example with docker run --shm-size "
        f"{math.ceil(processes * needed / _MEGA)}m"
    )
