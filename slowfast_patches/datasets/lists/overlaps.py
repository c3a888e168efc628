"""Find the videos that several lists of a data set have in common."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

from slowfast_patches.datasets.reading.frames import frame_files, is_frames
from slowfast_patches.utils.files import map_files
from slowfast_patches.utils.tables import shorten_list

_Key = tuple[str, str | None]
"""Path and name of a video."""
_HEAD = 1 << 16
"""Number of bytes to compare before a whole file is read."""


@dataclass(frozen=True)
class Overlap:
    """Videos that are in two lists.

    Attributes:
        first: Name of a list. If one of the lists is "train", it is this list.
        second: Name of the other list.
        size: Number of different videos in the second list.
        shared: The paths of each common video in the first and in the second list.
    """

    first: str
    second: str
    size: int
    shared: Sequence[tuple[str, str]]

    @property
    def remark(self) -> str:
        """Short text to print beside the accuracy on the second list."""
        count = len(self.shared)
        return f"{count} of the {self.size} videos of {self.second} are also in {self.first}"

    def __str__(self) -> str:
        names = [one if one == other else f"{one} = {other}" for one, other in self.shared]
        return (
            f"{self.remark}, so the accuracy on {self.second} is not that on new videos. Remove "
            f"these videos from one of the lists: {shorten_list(names)}"
        )


def find_overlaps(lists: Mapping[str, Sequence[Any]]) -> list[Overlap]:
    """Find the videos that each pair of lists has in common.

    Copies of a file, or of all the frames of a video, count as the same video. Otherwise, a video
    with a `name` is identified by its path and its name, because a folder may contain the frames of
    several videos. Videos without a path are ignored.

    A list "test" with the same videos as the list "val" is left out, because it is common to test
    on the validation videos.

    Args:
        lists: Maps the name of each list to its videos.
    """
    videos = _by_identity(lists)
    if "val" in videos and "test" in videos and videos["val"].keys() == videos["test"].keys():
        del videos["test"]
    overlaps = list[Overlap]()
    for first, second in combinations(sorted(videos, key=lambda name: name != "train"), 2):
        one, other = videos[first], videos[second]
        if shared := [(one[key], path) for key, path in other.items() if key in one]:
            overlaps.append(Overlap(first, second, len(other), shared))
    return overlaps


def _by_identity(lists: Mapping[str, Sequence[Any]]) -> dict[str, dict[object, str]]:
    """Return the paths of the videos of each list by a value that identifies the video."""
    listed = dict[str, dict[_Key, None]]()
    places = defaultdict[_Key, dict[str, int]](dict)
    for title, videos in lists.items():
        listed[title] = {}
        for number, video in enumerate(videos):
            if hasattr(video, "path"):
                key = (video.path, getattr(video, "name", None))
                listed[title][key] = None
                places[key].setdefault(title, number)

    def files_of(key: _Key) -> Sequence[str]:
        title, number = next(iter(places[key].items()))
        files: Sequence[str] | None = getattr(lists[title][number], "files", None)
        return _files(key[0]) if files is None else files

    same = _find_copies(places, files_of)
    return {title: {same.get(key, key): key[0] for key in keys} for title, keys in listed.items()}


def _find_copies(
    lists_of: Mapping[_Key, Collection[str]], files_of: Callable[[_Key], Sequence[str]]
) -> dict[_Key, object]:
    """Find videos that are copies of a video in another list.

    The sizes are compared first, then the first bytes, and then the content.

    Args:
        lists_of: Maps each video to the names of the lists that contain it.
        files_of: Returns the file of a video, or the files of its frames.

    Returns:
        Maps each copy to a value that is the same for all copies.
    """
    found: dict[_Key, object] = dict.fromkeys(lists_of)
    for look in (_size, _head, _digest):
        described = map_files(partial(_looked, look, files_of), list(found))
        groups = defaultdict[object, list[_Key]](list)
        for key, value in described.items():
            groups[value].append(key)
        found = {
            key: value
            for value, keys in groups.items()
            if len(keys) > 1 and len(set().union(*map(lists_of.__getitem__, keys))) > 1
            for key in keys
        }
    return found


def _looked(
    look: Callable[[Sequence[str]], object], files_of: Callable[[_Key], Sequence[str]], key: _Key
) -> object:
    """Call `look`. If a file cannot be read, return the key, so that the video has no copies."""
    try:
        return look(files_of(key))
    except (OSError, ValueError, IndexError):  # missing, no valid file name, an empty folder
        return key


def _size(files: Sequence[str]) -> object:
    """Return the number of files of a video, and the size of the first.

    Empty files do not count as copies, so return the path of an empty file instead of its size.
    """
    return (len(files), os.path.getsize(files[0]) or files[0])


def _head(files: Sequence[str]) -> object:
    with open(files[0], "rb") as file:
        return _size(files), file.read(_HEAD)


def _digest(files: Sequence[str]) -> object:
    whole = hashlib.sha256()
    for name in files:
        with open(name, "rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.digest()


def _files(path: str) -> list[str]:
    return frame_files(path) if is_frames(path) else [path]
