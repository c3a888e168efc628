"""Explain errors whose cause is the machine, such as a full disk, not the program or the recipe."""

from __future__ import annotations

import re
import traceback
from typing import NamedTuple


class _Cause(NamedTuple):
    """Cause of errors whose text matches `pattern`, and what to do about it."""

    pattern: str
    cause: str
    remedy: str


_KILLED = _Cause(
    r"DataLoader worker \(pid",
    "A data loader worker was killed",
    "If the machine was out of memory, set a lower DATA_LOADER.NUM_WORKERS.",
)
_LOST_RANK = _Cause(
    r"Dist\w*Error|/gloo/transport/",  # NCCL and the store, gloo
    "Another rank failed, or did not answer within DIST_STALL_SECONDS",
    "See the log of that rank.",
)
_CAUSES = (
    _LOST_RANK,
    _Cause(
        "Too many open files|ancdata",
        "The limit of open files is reached",
        "Raise it with ulimit -n, or set a lower DATA_LOADER.NUM_WORKERS.",
    ),
    _Cause(
        "shared memory|/dev/shm|Bus error",
        "The shared memory in /dev/shm is full",
        "Enlarge it (docker run --shm-size 8g), or set a lower DATA_LOADER.NUM_WORKERS. 0 workers "
        "need no shared memory.",
    ),
    _KILLED,
    _Cause(
        "CUDA out of memory",
        "The GPU is out of memory",
        "End other programs on the GPU, or set TRAIN.MIXED_PRECISION True or a lower "
        "TEST.BATCH_SIZE.",
    ),
    _Cause(
        "MemoryError|[Cc]an(not|'t) allocate memory",
        "The machine is out of memory",
        "End other programs, or set a lower DATA_LOADER.NUM_WORKERS.",
    ),
    _Cause(
        "can't start new thread|Resource temporarily unavailable",
        "The limit of processes and threads is reached",
        "Raise it (ulimit -u, docker run --pids-limit), or set a lower DATA_LOADER.NUM_WORKERS.",
    ),
    _Cause("No space left on device|Disk quota exceeded", "A disk is full", "Free space on it."),
)


def explain_machine_error(error: BaseException) -> str:
    """Return the cause of an error of the machine and what to do, or "" for other errors."""
    if not isinstance(error, (RuntimeError, OSError, EOFError, MemoryError)):
        return ""
    # The text of an error in a data loader worker is the traceback. Its last line is the error.
    lines = f"{type(error).__name__}: {error}".strip().splitlines()
    line = lines[-1 if "Original Traceback" in str(error) else 0].rstrip(" .:")
    found = next((c for c in _CAUSES if re.search(c.pattern, line)), None)
    if found is None and _is_broken_connection(error):
        found = _KILLED
    return f"{found.cause} ({line}). {found.remedy}" if found else ""


def is_lost_rank(error: BaseException) -> bool:
    """Return whether an error, or its explanation, is that the connection to a rank was lost."""
    return re.search(_LOST_RANK.pattern, f"{type(error).__name__}: {error}") is not None


def _is_broken_connection(error: BaseException) -> bool:
    """Return whether multiprocessing lost the connection to another process."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    is_lost = isinstance(error, (ConnectionError, EOFError))
    return is_lost and any("multiprocessing" in file for file in files)
