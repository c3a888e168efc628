"""Atomic file writes, and the checksums of archives."""

from __future__ import annotations

import errno
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

__all__ = ["TEMPORARY", "check_archive", "write_text", "written_whole"]

TEMPORARY = ".tmp"
"""Suffix of a file that is still being written."""
_ARCHIVE = b"PK\x03\x04"


@contextmanager
def written_whole(path: Path, *, shared: bool = False) -> Iterator[BinaryIO]:
    """Atomic write: a temporary file beside `path` that is renamed to it once it is on the disk. If
    it is `shared`, other processes may write it at the same time: the last one wins.

    However the body ends, killed or not, `path` is the file before or the new one. Unless this
    process is killed, no temporary file stays.

    Raises:
        OSError: it cannot be written; `path` is as it was.
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
        with suppress(OSError):  # where nothing can be written, nothing was
            temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    with suppress(OSError):  # some network file systems sync files only
        os.fsync(folder)  # so that the new name outlives a power cut
    os.close(folder)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with written_whole(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def check_archive(path: Path) -> bool:
    """Compare what a zip archive holds, as torch.save writes it, with the archive's checksums.

    Returns:
        Whether it is an archive: older releases of torch wrote files without checksums.

    Raises:
        ValueError: a bit is not as it was written, or the end is missing.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        if file.read(len(_ARCHIVE)) != _ARCHIVE:
            return False
        try:
            with zipfile.ZipFile(file) as archive:
                damaged = archive.testzip()
        except Exception as error:  # zipfile has many for a file that makes no sense
            if isinstance(error, OSError) and error.errno != errno.EINVAL:
                raise
            raise ValueError(f"{path} is damaged: {error}") from error
    if damaged is not None:
        raise ValueError(f"{path} is damaged: the checksum of {damaged} in it does not match")
    return True
