"""Atomic file writes, and checksums of archives."""

from __future__ import annotations

import errno
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

TEMPORARY = ".tmp"
"""Suffix of a file that is still being written."""
_ARCHIVE = b"PK\x03\x04"


@contextmanager
def atomic_write(path: Path, *, shared: bool = False) -> Iterator[BinaryIO]:
    """Context manager for an atomic write.

    The body writes to a temporary file in the same folder, which is synced and then renamed to
    `path`. Even if the process is killed, `path` is either the previous file or the complete new
    one. Only a killed process leaves a temporary file.

    Args:
        path: File to write.
        shared: Whether other processes may write the file at the same time. The last one wins.

    Yields:
        The temporary file, opened for writing.

    Raises:
        OSError: The file cannot be written. `path` is unchanged.
    """
    mark = f".{uuid4().hex}" if shared else ""
    temporary = path.with_name(path.name + mark + TEMPORARY)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):  # If the folder is not writable, there is no file.
            temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    with suppress(OSError):  # Some network file systems cannot sync folders.
        os.fsync(folder)  # Make the new name survive a power failure.
    os.close(folder)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_write(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def check_archive(path: Path) -> bool:
    """Verify the checksums of a zip archive, such as those of torch.save.

    Returns:
        Whether the file is an archive. Files of older torch releases are not.

    Raises:
        ValueError: The archive is damaged or truncated.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        if file.read(len(_ARCHIVE)) != _ARCHIVE:
            return False
        try:
            with zipfile.ZipFile(file) as archive:
                damaged = archive.testzip()
        except Exception as error:  # zipfile raises many types for an invalid file.
            if isinstance(error, OSError) and error.errno != errno.EINVAL:
                raise
            raise ValueError(f"{path} is damaged: {error}") from error
    if damaged is not None:
        raise ValueError(f"{path} is damaged: the checksum of its part {damaged} does not match")
    return True
