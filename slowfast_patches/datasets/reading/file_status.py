"""Tell whether a video has changed since it was read: the status of files and folders of frames."""

from __future__ import annotations

import os
import posixpath
import zlib
from collections.abc import Iterable
from functools import cache

from slowfast_patches.datasets.reading.frames import frame_files, is_frames
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError
from slowfast_patches.utils.files import map_files
from slowfast_patches.utils.storage import Status, is_remote, list_files, list_folders, list_status


def video_status(paths: Iterable[str]) -> dict[str, Status]:
    """Return the status of each video that exists.

    A video that is stored as JPEG files has the size of all its frames together, the newest time of
    its frames and of the folder, and a version that changes if a frame is overwritten, replaced,
    added or removed.

    Raises:
        RunError: A remote file system cannot be used.
    """
    paths = list(dict.fromkeys(paths))
    remote = list(filter(is_remote, paths))
    found = list_status(remote)
    folders = cache(list_folders)
    for path in remote:
        folder = path if "*" not in posixpath.basename(path) else posixpath.dirname(path)
        if path not in found and posixpath.basename(folder) in folders(posixpath.dirname(folder)):
            found[path] = _of_remote_frames(path, folder)
    local = map_files(_of_local, [path for path in paths if not is_remote(path)])
    return found | {path: status for path, status in local.items() if status is not None}


def _of_local(path: str) -> Status | None:
    """Return the status of a local video, or None if there is no such file or folder."""
    try:
        if not is_frames(path):
            status = os.stat(path)
            return Status(status.st_size, status.st_mtime_ns, status.st_mtime)
        folder = os.stat(path if os.path.isdir(path) else os.path.dirname(path) or ".")
        files = {file: os.stat(file) for file in _frames(path)}
    except (OSError, ValueError):  # ValueError: the path is not a valid file name
        return None
    rows = [f"{os.path.basename(f)} {s.st_size} {s.st_mtime_ns}" for f, s in files.items()]
    version = zlib.crc32(
        "\n".join([str(folder.st_mtime_ns), *rows]).encode(errors="surrogateescape")
    )
    newest = max(status.st_mtime for status in (folder, *files.values()))
    return Status(sum(status.st_size for status in files.values()), version, newest)


def _of_remote_frames(path: str, folder: str) -> Status:
    listed = list_files(folder)
    names = map(posixpath.basename, _frames(path))
    files = {name: listed[name] for name in names if name in listed}
    text = "\n".join(f"{name} {status.version}" for name, status in files.items())
    times = [status.modified for status in files.values() if status.modified is not None]
    size = sum(status.size for status in files.values())
    return Status(size, -2 - zlib.crc32(text.encode()), max(times, default=None))


def _frames(path: str) -> list[str]:
    """Return the frames of a video. Return no frames if they are not one series of JPEG files."""
    try:
        return frame_files(path)
    except UnreadableVideoError:
        return []
