"""One run per OUTPUT_DIR."""

from __future__ import annotations

import errno
import fcntl
import json
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
def held(output_dir: str | Path) -> Iterator[None]:
    """Hold a folder for the run of this process while the body runs; makes the folder.

    It is a POSIX record lock on OUTPUT_DIR/run.lock: the kernel releases it however the process
    ends, and it works over NFS. Processes forked from this one, such as workers that outlive it for
    seconds, do not have it; with flock, and so with the package filelock, they would. It is lost
    when the process closes the file, opened elsewhere: nothing else here may open it.

    Raises:
        ValueError: another run holds it; names that run. Or the folder cannot be written to.
    """
    path = Path(output_dir) / "run.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b", buffering=0)
    except OSError as error:
        raise _unwritable(output_dir, error) from error
    with file:
        try:
            _lock(file, output_dir)
            _write(file, _this_process())
        except OSError as error:
            raise _unwritable(output_dir, error) from error
        try:
            yield
        finally:
            with suppress(OSError):  # it says who had the folder last
                _write(file, "")


def _lock(file: BinaryIO, output_dir: str | Path) -> None:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (PermissionError, BlockingIOError) as error:
        raise ValueError(
            f"OUTPUT_DIR {output_dir} is in use by another run: {_holder(file)}. Wait for it, end "
            "it, or choose another OUTPUT_DIR"
        ) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        logger.warning("%s is on a file system without locks: no second run is refused", output_dir)


def _this_process() -> str:
    since = datetime.now().astimezone().isoformat(timespec="seconds")
    command = shlex.join(sys.orig_argv)
    run = {"host": socket.gethostname(), "pid": os.getpid(), "command": command, "since": since}
    return json.dumps(run)


def _holder(file: BinaryIO) -> str:
    """Who holds the lock, as they wrote; they may not have written yet."""
    file.seek(0)
    try:
        run = json.loads(file.read())
        return "process {pid} on {host}, since {since}: {command}".format(**run)
    except (ValueError, KeyError):
        return "one that has just started"


def _write(file: BinaryIO, text: str) -> None:
    file.truncate(0)
    file.write(text.encode())


def _unwritable(output_dir: str | Path, error: OSError) -> ValueError:
    why = error.strerror or error
    return ValueError(f"OUTPUT_DIR {output_dir} cannot be written to: {why}; choose another")
