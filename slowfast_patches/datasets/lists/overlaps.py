"""Find the videos that several lists of a data set have in common."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

from slowfast_patches.datasets.lists.csv_list import LabelledVideo
from slowfast_patches.datasets.reading.jpeg import frame_files
from slowfast_patches.utils.files import map_files
from slowfast_patches.utils.tables import shorten_list

_TRAIN = "train"
_HEAD = 1 << 16
"""Number of bytes to compare before a whole file is read."""


@dataclass(frozen=True)
class Overlap:
    """Videos that are in two lists.

    Attributes:
        first: Name of a list. If one of the lists is "train", it is this list.
        second: Name of the other list.
        size: Number of different videos in the second list.
        shared: The common videos: the first is that of the first list.
    """

    first: str
    second: str
    size: int
    shared: Sequence[tuple[LabelledVideo, LabelledVideo]]

    @property
    def remark(self) -> str:
        """Short text to print beside the accuracy on the second list."""
        count = len(self.shared)
        return f"{count} of the {self.size} videos of {self.second} are also in {self.first}"

    def __str__(self) -> str:
        contradictory = sum(one.label != other.label for one, other in self.shared)
        labels = f" ({contradictory} of them with another label)" if contradictory else ""
        reason = "that on new videos"
        if self.first != _TRAIN:
            reason = f"independent of choices made on {self.first}"
        names = [
            one.path if one.path == other.path else f"{one.path} = {other.path}"
            for one, other in self.shared
        ]
        return (
            f"{self.remark}{labels}, so the accuracy on {self.second} is not {reason}. Remove "
            f"these videos from one of the lists: {shorten_list(names)}"
        )


def find_overlaps(lists: Mapping[str, Sequence[Any]]) -> list[Overlap]:
    """Find the videos that each pair of lists has in common.

    Copies of a file count as the same video. A video with a `name` is identified by its path and
    its name, because a folder may contain the frames of several videos. Videos without a path are
    ignored.

    A list "test" with the same videos as the list "val" is left out, because it is common to test
    on the validation videos.

    Args:
        lists: Maps the name of each list to its videos.
    """
    videos = _by_identity(lists)
    names = sorted(videos, key=lambda name: name != _TRAIN)
    if "val" in videos and "test" in videos and videos["val"].keys() == videos["test"].keys():
        names.remove("test")
    overlaps = list[Overlap]()
    for one, other in combinations(names, 2):
        if keys := [key for key in videos[other] if key in videos[one]]:
            shared = [(videos[one][key], videos[other][key]) for key in keys]
            overlaps.append(Overlap(one, other, len(videos[other]), shared))
    return overlaps


def _by_identity(lists: Mapping[str, Sequence[Any]]) -> dict[str, dict[object, LabelledVideo]]:
    """Return the different videos of each list by a value that identifies the video."""
    found = dict[str, dict[tuple[str, object], LabelledVideo]]()
    lists_of = dict[str, set[str]]()
    for title, videos in lists.items():
        found[title] = {}
        for video in videos:
            if (path := getattr(video, "path", None)) is None:
                continue
            name = getattr(video, "name", None)
            label = video.label if isinstance(video, LabelledVideo) else -1
            found[title].setdefault((path, name), LabelledVideo(path, label))
            if name is None:
                lists_of.setdefault(path, set()).add(title)
    same = _find_copies(lists_of)
    return {
        title: {same.get(key[0], key): video for key, video in videos.items()}
        for title, videos in found.items()
    }


def _find_copies(lists_of: Mapping[str, Collection[str]]) -> dict[str, object]:
    """Find files, or folders of JPEG files, that are copies of a file in another list.

    The sizes are compared first, then the first bytes, and then the content.

    Args:
        lists_of: Maps each path to the names of the lists that contain it.

    Returns:
        Maps the path of each copy to a value that is the same for all copies.
    """
    found: dict[str, object] = dict.fromkeys(lists_of)
    for look in (_size, _head, _digest):
        described = map_files(look, list(found))
        groups = dict[object, list[str]]()
        for path, value in described.items():
            groups.setdefault(value, []).append(path)
        suspects = (
            paths
            for paths in groups.values()
            if len(paths) > 1 and len({title for path in paths for title in lists_of[path]}) > 1
        )
        found = {path: described[path] for paths in suspects for path in paths}
    return found


def _size(path: str) -> object:
    """Return the number of files of a video, and the size of the first.

    For an empty or missing file, which has no copies, return the absolute path.
    """
    try:
        files = _files(path)
        return (len(files), os.path.getsize(files[0]) or path)
    except (OSError, ValueError, IndexError):  # missing, no valid file name, an empty folder
        return os.path.abspath(path)


def _head(path: str) -> object:
    with open(_files(path)[0], "rb") as file:
        return _size(path), file.read(_HEAD)


def _digest(path: str) -> object:
    whole = hashlib.sha256()
    for name in _files(path):
        with open(name, "rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.digest()


def _files(path: str) -> list[str]:
    if not os.path.isdir(path):
        return [path]
    return [os.path.join(path, name) for name in frame_files(path)]


def resolve_paths(paths: Iterable[str]) -> dict[str, str]:
    """Map each path to its absolute path without symbolic links.

    The folders are resolved once, so that a long list takes one system call per video.
    """
    folder_of = cache(os.path.realpath)

    def resolve(path: str) -> str:
        folder, name = os.path.split(path)
        try:
            if name in ("", ".", "..") or os.path.islink(path):
                return os.path.realpath(path)
            return os.path.join(folder_of(folder), name)
        except ValueError:  # a null character
            return path

    return map_files(resolve, list(dict.fromkeys(paths)))
