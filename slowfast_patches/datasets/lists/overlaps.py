"""Find the videos that several lists of a data set have in common."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

from slowfast_patches.datasets.lists.csv_list import LabelledVideo
from slowfast_patches.utils.files import map_files
from slowfast_patches.utils.tables import shorten_list

_TRAIN = "train"


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


def find_overlaps(lists: Mapping[str, Mapping[str, LabelledVideo]]) -> list[Overlap]:
    """Compare each pair of lists.

    A list "test" with the same videos as the list "val" is left out, because it is common to test
    on the validation videos.

    Args:
        lists: Maps the name of each list to its videos by a text that identifies the video.
    """
    names = sorted(lists, key=lambda name: name != _TRAIN)
    if "val" in lists and "test" in lists and lists["val"].keys() == lists["test"].keys():
        names.remove("test")
    return [
        Overlap(
            one, other, len(lists[other]), [(lists[one][key], lists[other][key]) for key in keys]
        )
        for one, other in combinations(names, 2)
        if (keys := [key for key in lists[other] if key in lists[one]])
    ]


def by_resolved_path(videos: Sequence[Any]) -> dict[str, LabelledVideo]:
    """Return the different videos of a list by the path of the file, without symbolic links.

    A video with a `name` is identified by the path and the name, because a folder may contain the
    frames of several videos. Videos without a path are left out.
    """
    where = [str(getattr(video, "path", "")) for video in videos]
    resolved = resolve_paths(where)
    found = dict[str, LabelledVideo]()
    for path, video in zip(where, videos, strict=True):
        if path:
            label = video.label if isinstance(video, LabelledVideo) else -1
            name = getattr(video, "name", "")
            found.setdefault(f"{resolved[path]}\0{name}", LabelledVideo(path, label))
    return found


def resolve_paths(paths: Iterable[str]) -> dict[str, str]:
    """Map each path to its absolute path without symbolic links.

    The folders are resolved once, so that a long list takes one system call per video.
    """
    folder_of = cache(os.path.realpath)

    def resolve(path: str) -> str:
        folder, name = os.path.split(path)
        if name in ("", ".", "..") or os.path.islink(path):
            return os.path.realpath(path)
        return os.path.join(folder_of(folder), name)

    return map_files(resolve, list(dict.fromkeys(paths)))
