"""Lock an output folder, so that only one run at a time writes to the folder."""

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

from slowfast_patches.utils.errors import UserError

logger = logging.getLogger(__name__)


@contextmanager
def locked(folder: str | Path, option: str = "OUTPUT_DIR") -> Iterator[None]:
    """Create a folder if needed, and hold its lock during the `with` statement.

    The lock is a POSIX record lock on the file run.lock in the folder. The kernel releases the lock
    when the process ends, even if the process is killed. Record locks work over NFS. They are not
    inherited by forked processes, unlike flock locks (which the package filelock uses), so workers
    that outlive this process for some seconds do not keep the lock.

    The process would lose the lock by closing any other handle of run.lock. No other code may
    therefore open this file.

    Args:
        folder: Folder to lock.
        option: Command-line option or config key that sets the folder. It is named in errors.

    Raises:
        ValueError: Another run has locked the folder, or the folder is not writable.
    """
    path = Path(folder) / "run.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", errors="backslashreplace")
    except OSError as error:
        raise UserError(
            f"{option} {folder} is not writable: {error.strerror}. Choose another folder."
        ) from error
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (PermissionError, BlockingIOError) as error:
            file.seek(0)
            raise UserError(
                f"{option} {folder} is in use by another run: {file.read()}. Wait until that run "
                "ends, stop it, or choose another folder."
            ) from error
        except OSError as error:
            logger.warning(
                "%s cannot be locked (%s). Make sure that no other run writes to this folder.",
                folder,
                error,
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
