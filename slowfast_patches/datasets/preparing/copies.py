"""Find copies of the same video in several lists that are to be prepared."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from slowfast_patches.datasets.lists.overlaps import Overlap, find_overlaps
from slowfast_patches.datasets.preparing.video_lists import VideoList
from slowfast_patches.datasets.reading.containers import frame_files
from slowfast_patches.utils.files import map_files


def find_copies(lists: Sequence[VideoList]) -> list[Overlap]:
    """Find the videos that have the same content as a video of another list.

    Only files whose size occurs in another list are read.
    """
    lists_of = dict[str, set[str]]()
    for videos in lists:
        for video in videos.videos:
            lists_of.setdefault(video.path, set()).add(videos.name)
    by_size = dict[int, list[str]]()
    for path, (size, _) in map_files(source_state, list(lists_of)).items():
        by_size.setdefault(size, []).append(path)
    by_size.pop(0, None)  # missing files
    suspects = list[str]()
    for paths in by_size.values():
        if len(paths) > 1 and len(set[str]().union(*(lists_of[path] for path in paths))) > 1:
            suspects += paths
    digests = map_files(_digest, suspects)
    return find_overlaps(
        {
            Path(videos.name).stem: {digests.get(v.path, v.path): v for v in videos.videos}
            for videos in lists
        }
    )


def source_state(path: str) -> tuple[int, int | None]:
    """Return the size and the modification time of a file or of the JPEG files in a folder.

    Returns:
        The total size in bytes, and the latest modification time in seconds. (0, None) if the path
        does not exist.
    """
    try:
        status = [os.stat(file) for file in (path, *_frames(path))]
    except OSError:
        return 0, None
    size = sum(s.st_size for s in status if not stat.S_ISDIR(s.st_mode))
    return size, int(max(s.st_mtime for s in status))


def _digest(path: str) -> str:
    """Return a hash of the content of a file or a folder of JPEG files.

    If the file cannot be read, return the path.
    """
    whole = hashlib.sha256()
    try:
        for file in _frames(path) or [path]:
            with open(file, "rb") as stream:
                whole.update(hashlib.file_digest(stream, "sha256").digest())
    except OSError:
        return path
    return whole.hexdigest()


def _frames(path: str) -> list[str]:
    """Return the paths of the JPEG files in a folder, or an empty list for a file."""
    return [os.path.join(path, name) for name in frame_files(path)] if os.path.isdir(path) else []
