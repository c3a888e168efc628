"""A lock on a folder: only one run writes to it."""

from __future__ import annotations

import fcntl
import logging
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

__all__ = ["held"]

logger = logging.getLogger(__name__)


@contextmanager
def held(folder: str | Path, option: str = "OUTPUT_DIR") -> Iterator[None]:
    """Lock a folder, which is made, while the body runs; `option` is what a user gave it as.

    It is a POSIX record lock on the folder's run.lock: the kernel releases it however the process
    ends, and it works over NFS. Processes forked from this one, such as workers that outlive it for
    seconds, do not have it; with flock, and so with the package filelock, they would. It is lost
    when the process closes the file, opened elsewhere: nothing else here may open it.

    Raises:
        ValueError: another run holds it, which the message names; or it cannot be written to.
    """
    path = Path(folder) / "run.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", errors="backslashreplace")
    except OSError as error:
        raise ValueError(
            f"{option} {folder} cannot be written to: {error.strerror}; choose another"
        ) from error
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (PermissionError, BlockingIOError) as error:
            file.seek(0)
            raise ValueError(
                f"{option} {folder} is in use by another run: {file.read()}. Wait for it, end it, "
                "or choose another folder"
            ) from error
        except OSError as error:
            logger.warning("%s cannot be locked, so no second run is refused: %s", folder, error)
        since = datetime.now().astimezone().isoformat(timespec="seconds")
        command = shlex.join(sys.orig_argv)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}, since {since}: {command}")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)
