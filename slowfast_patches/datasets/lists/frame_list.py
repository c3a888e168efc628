"""Read frame lists: csv files with a line per frame that gives its path and its labels.

    original_vido_id video_id frame_id path labels
    46GP8 0 0 46GP8/46GP8-000001.jpg ""
    46GP8 0 1 46GP8/46GP8-000002.jpg "92,147"

Such lists are published for Something-Something and Charades. The misspelling in the header is part
of the format. A list has millions of lines, so it is read in one pass and stored compressed.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter, lt
from pathlib import Path
from typing import TextIO

from multigrid import Video
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.csv_list import SPACES, check_labels, check_list
from slowfast_patches.datasets.reading.jpeg import jpeg_size
from slowfast_patches.datasets.reading.scanned_video import Kind, ScannedVideo, SharedList
from slowfast_patches.utils.errors import UserError, mistake_in
from slowfast_patches.utils.storage import is_remote

HEADER = "original_vido_id video_id frame_id path labels"
"""First line of a frame list. Published lists have this misspelling."""
_SPACE = re.compile(f"[{re.escape(SPACES)}]+")
_HEADERS = (HEADER.split(), HEADER.replace("vido", "video").split())


@dataclass(frozen=True)
class FrameVideo:
    """Video of a frame list."""

    name: str
    folder: str
    """Folder to which the frame paths are relative."""
    packed: bytes
    """Frame paths, separated by line feeds and compressed with zlib."""
    labels: tuple[tuple[int, ...], ...]
    """Class indices of each frame. Equal tuples are one object, so that pickles are small."""
    fps: float

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the frames, in display order."""
        paths = os.fsdecode(zlib.decompress(self.packed)).split("\n")
        return tuple(p if is_remote(p) else os.path.join(self.folder, p) for p in paths)

    @property
    def path(self) -> str:
        """Path of the folder that contains the first frame."""
        return os.path.dirname(self.files[0])

    @property
    def label(self) -> int:
        """The label of a video all of whose frames have the same single label."""
        return self.labels[0][0]

    @property
    def annotation(self) -> str:
        """Text that contains the labels of all frames. `list_digest` hashes it."""
        return str(self.labels)

    def classes(self, first: int = 0, last: int | None = None) -> set[int]:
        """Return the set of all labels of the frames from `first` to `last` inclusive.

        If `last` is None, use all frames from `first` to the end of the video.
        """
        return set().union(*self.labels[first : None if last is None else last + 1])

    def scanned(self) -> ScannedVideo:
        """Return the video in the form in which clips are read from it.

        The frame size is read from the first frame.

        Raises:
            UnreadableVideoError: The first frame is missing, or is not a JPEG file.
        """
        files = self.files
        size = jpeg_size(files[0])
        return ScannedVideo(Kind.FRAMES, Video(len(files), self.fps, *size), files=files)


def read_frame_list(
    path: Path, *, prefix: str = "", num_classes: int, fps: float
) -> SharedList[FrameVideo]:
    """Read the videos of a frame list.

    Args:
        path: The list.
        prefix: Folder to which the paths in the list are relative. By default the folder of the
            list.
        num_classes: Number of classes. Labels must be from 0 to `num_classes` - 1.
        fps: Frame rate of all videos, because the list does not contain frame rates.

    Raises:
        ValueError: The file does not exist, has an unexpected header, contains no frames or an
            invalid line or label, or lists the frames of a video out of order.
    """
    check_list(path)
    places = dict[int, str]()
    videos = SharedList(_parse(path, os.fspath(prefix or path.parent), fps, places))
    if not videos:
        raise UserError(f"the frame list {path} contains no frames")
    check_labels(path, places, num_classes)
    return videos


def read_charades(recipe: Recipe, path: Path, split: str) -> SharedList[FrameVideo]:
    """Read the videos of a frame list. Prefix, classes and frame rate come from the recipe.

    Raises:
        ValueError: As for `read_frame_list`.
    """
    return read_frame_list(
        path,
        prefix=recipe.data.path_prefix,
        num_classes=recipe.model.num_classes,
        fps=float(recipe.data.target_fps),
    )


def is_frame_list(path: Path) -> bool:
    """Return whether the first line of a file is the header of a frame list."""
    with _open(path) as file:
        return next(_rows(file), []) in _HEADERS


def _open(path: Path) -> TextIO:
    with mistake_in(f"{path} cannot be read"):
        return path.open(encoding="utf-8-sig", errors="surrogateescape")


def _rows(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the fields of each line that is not blank. Only ASCII white space separates fields."""
    for line in lines:
        # For millions of lines, a regular expression takes several times as long as `str.split`.
        fields = line.split() if line.isascii() else _SPACE.split(line.strip(SPACES))
        if fields not in ([], [""]):
            yield fields


def _parse(path: Path, folder: str, fps: float, places: dict[int, str]) -> Iterator[FrameVideo]:
    """Yield the videos of a list. Add the video in which each label first occurs to `places`."""
    seen = set[str]()
    with _open(path) as file:
        rows = _rows(file)
        if next(rows, []) not in _HEADERS:
            raise UserError(f"{path}: the first line is not the header '{HEADER}'")
        for name, group in groupby(rows, itemgetter(0)):
            try:
                if name in seen:
                    raise UserError("the lines of the video are not consecutive")
                paths, labels = _read_video(list(group))
            except UserError as error:
                raise UserError(f"{path}, video {name}: {error}") from None
            seen.add(name)
            for label in set().union(*labels) - places.keys():
                places[label] = f"video {name}"
            packed = zlib.compress(os.fsencode("\n".join(paths)), 1)
            yield FrameVideo(name, folder, packed, labels, fps)


def _read_video(
    rows: Sequence[Sequence[str]],
) -> tuple[Sequence[str], tuple[tuple[int, ...], ...]]:
    """Return the path and the labels of each frame of a video.

    Raises:
        ValueError: A line has a wrong number of fields, or the frame ids do not increase.
    """
    if set(map(len, rows)) != {len(_HEADERS[0])}:
        raise UserError(f"a line does not have the fields '{HEADER}'")
    _, _, ids, paths, fields = zip(*rows, strict=True)
    with mistake_in("a frame id or a label is not a whole number", ValueError):
        numbers = list(map(int, ids))
        labels = {field: tuple(map(int, re.findall(r"[^,\"]+", field))) for field in set(fields)}
    if not all(map(lt, numbers, numbers[1:])):
        raise UserError("the frame ids are not in ascending order")
    return paths, tuple(map(labels.__getitem__, fields))
