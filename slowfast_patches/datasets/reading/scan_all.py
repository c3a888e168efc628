"""Scan many videos in parallel, whatever some of them do to the process that scans them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from slowfast_patches.datasets.reading.files import MAX_PIXELS
from slowfast_patches.datasets.reading.index_table import Entry
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.video_record import UnreadableVideoError
from slowfast_patches.utils.machine import available_cores
from slowfast_patches.utils.processes import Died, run_each

__all__ = ["FEW", "KILLER", "scan_all"]

FEW = 64
"""Fewer videos are scanned by this process before others have started, which takes 1 to 2 s."""
KILLER = "cannot be scanned: the process that tried was killed, twice"
"""The reason of a video that no process survives."""

_WAITING = 4
"""Videos handed to each process at a time: scanning one takes little, and none shall wait."""

Found = Callable[[int, Entry], None]


def scan_all(
    paths: Sequence[str],
    found: Found,
    *,
    workers: int | None = None,
    guarded: bool = False,
    max_pixels: int = MAX_PIXELS,
) -> None:
    """Call `found(number, entry)` for each path as soon as it is scanned, in no certain order.

    Few videos are scanned in this process, unless `guarded`; else by `workers` processes, as many
    as there are cores if that is None. A video that kills the process that scans it is unreadable,
    as is one with frames of more than `max_pixels`.
    """
    jobs = [(number, path, max_pixels) for number, path in enumerate(paths)]
    if len(jobs) < FEW and not guarded:
        for job in jobs:
            found(job[0], _scan(job))
        return
    each = run_each(_scan, jobs, workers or available_cores(), jobs_per_worker=_WAITING)
    with contextlib.closing(each):
        for (number, *_), entry in each:
            found(number, Entry(reason=KILLER) if isinstance(entry, Died) else entry)


def _scan(job: tuple[int, str, int]) -> Entry:
    """What is found out about a video: never an error, since hours of others hang on it."""
    try:
        return Entry.of(scan(*job[1:]))
    except UnreadableVideoError as error:
        return Entry(reason=str(error) or "cannot be read")
    except Exception as error:  # a fault of ours or a library's, in the one place that shows it
        return Entry(reason=f"cannot be scanned: {type(error).__name__}: {error}")
