"""One run at a time writes to a folder."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

__all__ = ["held"]

logger = logging.getLogger(__name__)

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)


@contextmanager
def held(folder: str | Path, option: str = "OUTPUT_DIR") -> Iterator[None]:
    """Hold a folder for the run of this process while the body runs; makes the folder. `option` is
    what a user gave it as.

    It is a POSIX record lock on the folder's run.lock: the kernel releases it however the process
    ends, and it works over NFS. Processes forked from this one, such as workers that outlive it for
    seconds, do not have it; with flock, and so with the package filelock, they would. It is lost
    when the process closes the file, opened elsewhere: nothing else here may open it.

    Raises:
        ValueError: another run holds it; names that run. Or the folder cannot be written to.
    """
    given = f"{option} {folder}"
    path = Path(folder) / "run.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b", buffering=0)
    except OSError as error:
        raise _unwritable(given, error) from error
    with file:
        try:
            _lock(file, given)
            _write(file, _this_process())
        except OSError as error:
            raise _unwritable(given, error) from error
        try:
            yield
        finally:
            with suppress(OSError):  # it says who had the folder last
                _write(file, "")


def _lock(file: BinaryIO, given: str) -> None:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (PermissionError, BlockingIOError) as error:
        file.seek(0)
        holder = file.read().decode(errors="replace") or "one that has just started"
        raise ValueError(
            f"{given} is in use by another run: {holder}. Wait for it, end it, or choose another "
            "folder"
        ) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        logger.warning("%s is on a file system without locks: no second run is refused", given)


def _this_process() -> str:
    since = datetime.now().astimezone().isoformat(timespec="seconds")
    command = shlex.join(sys.orig_argv)
    return f"process {os.getpid()} on {socket.gethostname()}, since {since}: {command}"


def _write(file: BinaryIO, text: str) -> None:
    file.truncate(0)
    file.write(text.encode(errors="backslashreplace"))


def _unwritable(given: str, error: OSError) -> ValueError:
    return ValueError(f"{given} cannot be written to: {error.strerror or error}; choose another")
