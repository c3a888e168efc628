"""Lock of a folder, so that only one run writes to it."""

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

logger = logging.getLogger(__name__)


@contextmanager
def locked(folder: str | Path, option: str = "OUTPUT_DIR") -> Iterator[None]:
    """Context manager: create and lock a folder.

    The lock is a POSIX record lock on run.lock. The kernel releases it when the process ends in
    any way, and it works over NFS. Forked processes, such as workers that outlive this process for
    seconds, do not inherit it. With flock, which the package filelock uses, they would. A record
    lock is lost when the process closes any handle of the file, so no other code may open it.

    Args:
        folder: Folder to lock.
        option: Option or key that names the folder, for error messages.

    Raises:
        ValueError: Another run has the lock, or the folder is not writable.
    """
    path = Path(folder) / "run.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", errors="backslashreplace")
    except OSError as error:
        raise ValueError(
            f"{option} {folder} cannot be written to: {error.strerror}. Choose another folder."
        ) from error
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (PermissionError, BlockingIOError) as error:
            file.seek(0)
            raise ValueError(
                f"{option} {folder} is in use by another run: {file.read()}. Wait for it, end it, "
                "or choose another folder."
            ) from error
        except OSError as error:
            logger.warning(
                "%s cannot be locked (%s). Make sure that no second run uses it.", folder, error
            )
        since = datetime.now().astimezone().isoformat(timespec="seconds")
        command = shlex.join(sys.orig_argv)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}, since {since}: {command}")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)
