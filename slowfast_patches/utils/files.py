"""Write files atomically, query many files, and verify the checksums of archives."""

from __future__ import annotations

import errno
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.pool import ThreadPool
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import BinaryIO, TypeVar, cast
from uuid import uuid4

from slowfast_patches.utils.errors import UserError, mistake_in, writing
from slowfast_patches.utils.storage import is_remote, upload

K = TypeVar("K")
T = TypeVar("T")

TEMPORARY = ".tmp"
"""Suffix of temporary files that are renamed when they are complete."""
_ARCHIVE = b"PK\x03\x04"
_THREADS = 32
"""Number of threads that query files. On a network disk, the threads wait most of the time."""


@contextmanager
def atomic_write(path: Path, *, shared: bool = False) -> Iterator[BinaryIO]:
    """Write a local or remote file atomically, in a `with` statement.

    The body of the statement writes to a temporary file in the same folder. After the body, the
    temporary file is synced to disk and renamed to `path`. Even if the process is killed, `path` is
    either the previous file or the complete new file. If the body raises an error, the temporary
    file is deleted. The temporary file of a remote file is local, and is uploaded after the body.

    Args:
        path: File to write.
        shared: Whether other processes may write the same file at the same time. The last process
            to finish then replaces the file of the others.

    Yields:
        The temporary file, opened for writing bytes.

    Raises:
        RunError: The file cannot be written. `path` is unchanged.
        OSError: The machine cannot write the file, for example because the disk is full.
    """
    if is_remote(path):
        with NamedTemporaryFile() as local:
            yield cast(BinaryIO, local)
            local.flush()
            upload(local.name, str(path))
        return
    mark = f".{uuid4().hex}" if shared else ""
    temporary = path.with_name(path.name + mark + TEMPORARY)
    try:
        with writing(path):
            file = temporary.open("wb")
        with file:
            yield file
            with writing(path):
                file.flush()
                os.fsync(file.fileno())
        with writing(path):
            temporary.replace(path)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # errors of a full disk name no file
        with suppress(OSError):  # In a folder that is not writable, no temporary file was created.
            temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    with suppress(OSError):  # Some network file systems cannot sync folders.
        os.fsync(folder)  # Sync the folder, so that the rename survives a power failure.
    os.close(folder)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_write(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def make_folder(path: Path, option: str = "") -> None:
    """Create a folder and its parents, unless it exists, and check that it is writable.

    Args:
        path: The folder.
        option: Command-line option or config key that sets the folder.

    Raises:
        RunError: The folder cannot be created, or is not writable.
    """
    with writing(path, option):
        path.mkdir(parents=True, exist_ok=True)
        if not is_remote(path) and not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def check_output(path: Path | None, option: str) -> None:
    """Check that a file can be written, before the work whose result it will contain.

    Args:
        path: The file, or None.
        option: Command-line option that sets the path.

    Raises:
        UserError: The path is a folder, or a file is in the place of its folder.
    """
    if path is None:
        return
    with mistake_in(f"{option} {path} cannot be written"):
        blocked = [parent for parent in path.parents if parent.exists() and not parent.is_dir()]
        if path.is_dir() or blocked:
            found = f"{blocked[0]} is a file" if blocked else "it is a folder"
            raise UserError(f"{option} {path} cannot be written: {found}. Give another path.")


def map_files(query: Callable[[K], T], names: Sequence[K]) -> dict[K, T]:
    """Call a function that queries a file for each name, in many threads.

    Args:
        query: The function. It takes a name.
        names: The names, which must all be different.

    Returns:
        The result for each name.
    """
    with ThreadPool(_THREADS) as threads:
        return dict(zip(names, threads.map(query, names), strict=True))


def check_archive(path: Path) -> bool:
    """Verify the checksums in a zip archive, such as a file written by torch.save.

    Returns:
        Whether the file is a zip archive. Files written by torch before 1.6 are not.

    Raises:
        UserError: The archive is damaged or truncated.
        OSError: The disk cannot read the file.
    """
    with path.open("rb") as file:
        if file.read(len(_ARCHIVE)) != _ARCHIVE:
            return False
        try:
            with zipfile.ZipFile(file) as archive:
                damaged = archive.testzip()
        except Exception as error:  # zipfile raises errors of many types for an invalid file.
            if isinstance(error, OSError) and error.errno != errno.EINVAL:
                raise
            raise UserError(f"{path} is damaged: {error}") from error
    if damaged is not None:
        raise UserError(f"{path} is damaged: the checksum of the entry {damaged} does not match")
    return True
