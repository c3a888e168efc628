"""Read and write files in buckets and on other remote file systems, through fsspec.

A remote path is an address such as `s3://bucket/videos/a.mp4`. Its scheme is one that fsspec knows.
The library of the file system, such as s3fs, finds the credentials and the endpoint. It also
retries failed requests.

A file that does not exist raises FileNotFoundError, as on a local disk. All other errors become a
`RunError`, because they also affect all other files.
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path, PosixPath
from typing import IO, Any, BinaryIO, NamedTuple, cast

from fsspec.core import url_to_fs
from fsspec.registry import known_implementations

from slowfast_patches.utils.errors import RunError

_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*)://[^/]")
_UNUSED = frozenset({"file", "http", "https", "local"})
"""Schemes of fsspec that are not remote paths here. The addresses of web pages look like those of
files, and a list must not contain them by mistake."""
_BLOCK = 1 << 20
"""Number of bytes that `open_file` requests at once. A request takes as long as the transfer of
about 1 MB."""
_BLOCKS = 16
"""Number of blocks that an open file keeps in memory."""
_VERSIONS = ("ETag", "etag", "blob_id", "md5Hash", "LastModified", "mtime", "updated", "created")
"""Names under which file systems give a value that changes when a file is replaced."""


class Status(NamedTuple):
    """Properties of a file."""

    size: int
    """Size in bytes."""
    version: int
    """Number that changes when the file is replaced. For a local file, this is the modification
    time in nanoseconds. For a remote file, it is negative."""
    modified: float | None
    """When the file was written, in seconds since the epoch, or None if this is unknown."""


class RemotePath(PosixPath):
    """Path of a remote file. Methods that only change names work as in `Path`.

    Of the methods that access files, use only those that this class defines.
    """

    def __str__(self) -> str:
        # `Path` collapses the slashes after the scheme.
        return super().__str__().replace(":/", "://", 1)

    def exists(self, **options: bool) -> bool:
        """Return whether there is a file or a folder with this path."""
        return _kind(str(self)) is not None

    def is_file(self, **options: bool) -> bool:
        """Return whether there is a file with this path."""
        return _kind(str(self)) == "file"

    def is_dir(self, **options: bool) -> bool:
        """Return whether there is a folder with this path."""
        return _kind(str(self)) == "directory"

    def open(self, mode: str = "r", **text: Any) -> IO[Any]:  # type: ignore[override]
        """Read the whole file, and return its content as a file.

        Args:
            mode: "r" or "rb".
            text: Arguments for `io.TextIOWrapper`, such as the encoding.
        """
        assert mode in ("r", "rb"), mode
        content = io.BytesIO(self.read_bytes())
        return content if mode == "rb" else io.TextIOWrapper(content, **text)

    def read_bytes(self) -> bytes:
        """Return the content of the file."""
        return read_range(str(self), 0, None)

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the file, if it exists."""
        with (
            suppress(FileNotFoundError),
            _translate_errors(str(self), "removed") as (system, place),
        ):
            system.rm_file(place)

    def mkdir(self, *options: Any, **others: Any) -> None:
        """Do nothing, because a bucket has no folders."""


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is the address of a file on a remote file system."""
    found = _ADDRESS.match(os.fspath(path))
    return found is not None and found[1] in known_implementations and found[1] not in _UNUSED


def as_path(path: str | os.PathLike[str]) -> Path:
    """Return a `Path`, which is a `RemotePath` if the path is remote."""
    return RemotePath(path) if is_remote(path) else Path(path)


def absolute(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path without `..`. Remote paths are absolute.

    A `..` behind a symbolic link leads to the parent of the folder that the link names, as when the
    path is opened. `os.path.abspath` would lead to the parent of the link.
    """
    if is_remote(path):
        return as_path(path)
    plain = os.path.abspath(path)
    if os.pardir in os.fspath(path).split(os.sep):
        real = os.path.realpath(path)
        return Path(plain if real == os.path.realpath(plain) else real)
    return Path(plain)


def join(folder: Path, name: str) -> str:
    """Return the path of a file in a folder. An absolute or remote name is returned as it is."""
    if is_remote(name):
        return name
    return posixpath.join(str(folder), name) if is_remote(folder) else str(folder / name)


def list_files(folder: str) -> dict[str, Status]:
    """Return the status of each file in a remote folder, by the name of the file.

    Raises:
        RunError: The file system cannot be used.
    """
    files = (info for info in _list(folder) if info["type"] == "file")
    return {posixpath.basename(info["name"]): _status(info) for info in files}


def list_folders(folder: str) -> set[str]:
    """Return the names of the folders in a remote folder.

    Raises:
        RunError: The file system cannot be used.
    """
    folders = (info for info in _list(folder) if info["type"] == "directory")
    return {posixpath.basename(info["name"].rstrip("/")) for info in folders}


def _list(folder: str) -> list[dict[str, Any]]:
    """Return the properties of all files and folders in a remote folder."""
    with _translate_errors(folder) as (system, place):
        system.invalidate_cache(place)
        try:
            found: list[dict[str, Any]] = system.ls(place, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        system.invalidate_cache(place)  # files may change while this process runs
    return found


def list_status(paths: Iterable[str]) -> dict[str, Status]:
    """Return the status of each of the files that exists.

    Remote files are listed by folder, because one request lists about a thousand files.

    Raises:
        RunError: The file system cannot be used.
    """
    folders = defaultdict[str, list[str]](list)
    found = dict[str, Status]()
    for path in paths:
        if is_remote(path):
            folders[posixpath.dirname(path)].append(path)
            continue
        with suppress(OSError, ValueError):  # ValueError: the path is not a valid file name
            local = os.stat(path)
            found[path] = Status(local.st_size, local.st_mtime_ns, local.st_mtime)
    for folder, files in folders.items():
        listed = list_files(folder)
        names = ((path, posixpath.basename(path)) for path in files)
        found |= {path: listed[name] for path, name in names if name in listed}
    return found


def read_range(path: str, begin: int, end: int | None) -> bytes:
    """Read the bytes from `begin` to `end`, or to the end of the file, with one request.

    Returns:
        The bytes, which are fewer than requested if a remote file is shorter.

    Raises:
        FileNotFoundError: The file does not exist.
        RunError: The remote file system cannot be used.
    """
    if not is_remote(path):
        with open(path, "rb", buffering=0) as file:
            file.seek(begin)
            return file.read() if end is None else file.read(end - begin)
    with _translate_errors(path) as (system, place):
        # By default, only asynchronous file systems request exactly these bytes.
        options = {} if system.async_impl else {"cache_type": "none"}
        whole = begin == 0 and end is None
        limits = {} if whole else {"start": begin, "end": end}
        return cast(bytes, system.cat_file(place, **limits, **options))


@contextmanager
def open_file(path: str) -> Iterator[BinaryIO]:
    """Open a local or remote file for reading bytes, in a `with` statement.

    For a remote file, only the blocks that are read are requested.

    Raises:
        FileNotFoundError: The file does not exist.
        RunError: The remote file system cannot be used.
    """
    if not is_remote(path):
        with open(path, "rb") as file:
            yield file
        return
    with _translate_errors(path) as (system, place):
        cache = {"cache_type": "blockcache", "cache_options": {"maxblocks": _BLOCKS}}
        opened = system.open(place, "rb", block_size=_BLOCK, **cache)
    with opened, _RemoteFile(path, opened) as file:
        yield cast(BinaryIO, file)


def upload(file: str | os.PathLike[str], path: str) -> None:
    """Write the content of a local file to a remote file.

    Raises:
        RunError: The remote file system cannot be used.
    """
    with _translate_errors(path, "written") as (system, place):
        system.put_file(os.fspath(file), place)


class _RemoteFile(io.RawIOBase):
    """File of fsspec whose errors are translated."""

    def __init__(self, path: str, file: Any) -> None:
        super().__init__()
        self._path = path
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def readinto(self, buffer: Any) -> int:
        with _translate_errors(self._path):
            return int(self._file.readinto(buffer))


def _kind(path: str) -> str | None:
    """Return "file" or "directory", or None if a path does not exist."""
    with suppress(FileNotFoundError), _translate_errors(path) as (system, place):
        system.invalidate_cache(place)
        return cast(str, system.info(place)["type"])
    return None


def _status(info: dict[str, Any]) -> Status:
    version = next((str(info[name]) for name in _VERSIONS if info.get(name)), "")
    times = [time.timestamp() for time in info.values() if isinstance(time, datetime)]
    number = -2 - zlib.crc32(version.encode())
    return Status(info["size"] or 0, number, max(times, default=None))


@contextmanager
def _translate_errors(path: str, done: str = "read") -> Iterator[tuple[Any, str]]:
    """Yield the file system of a path and the path in this file system, and translate errors."""
    scheme = path.partition("://")[0]
    try:
        yield url_to_fs(path)  # the file system of this process, which fsspec caches
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "no such file or bucket", path) from error
    except RunError:
        raise
    except Exception as error:  # the errors of these libraries have no common base
        reason = " ".join((str(error) or type(error).__name__).split()).rstrip(".")
        raise RunError(
            f"{path} cannot be {done}: {reason}. Check the connection, the endpoint and the "
            f"credentials for {scheme}://"
        ) from error
