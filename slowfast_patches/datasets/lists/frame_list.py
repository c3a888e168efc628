"""Read frame lists: csv files with a line per frame that gives its path and its labels.

    original_vido_id video_id frame_id path labels
    46GP8 0 0 46GP8/46GP8-000001.jpg ""
    46GP8 0 1 46GP8/46GP8-000002.jpg "92,147"

Such lists are published for Something-Something and Charades. The misspelling in the header is part
of the format. A list has millions of lines, so it is read in one pass and stored compressed.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import itemgetter, lt
from pathlib import Path
from typing import NamedTuple

from multigrid import Video
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.csv_list import check_labels, check_list, read_utf8
from slowfast_patches.datasets.reading.jpeg import jpeg_size
from slowfast_patches.datasets.reading.scanned_video import Kind, ScannedVideo
from slowfast_patches.datasets.reading.shared_list import SharedList
from slowfast_patches.utils.storage import is_remote, status

HEADER = "original_vido_id video_id frame_id path labels"
"""First line of a frame list. Published lists have this misspelling."""
_HEADERS = (HEADER, HEADER.replace("vido", "video"))
_FIELDS = len(HEADER.split())
_BOM = b"\xef\xbb\xbf"


class LabelledFrames(NamedTuple):
    """Run of consecutive frames of a video with the same labels.

    Attributes:
        end: Index of the frame after the last frame of the run.
        labels: Class indices.
    """

    end: int
    labels: tuple[int, ...]


@dataclass(frozen=True)
class FrameVideo:
    """Video of a frame list."""

    name: str
    folder: str
    """Folder to which the frame paths are relative."""
    packed: bytes
    """Frame paths, separated by line feeds and compressed with zlib."""
    runs: tuple[LabelledFrames, ...]
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
        ((_, (label,)),) = self.runs
        return label

    @property
    def annotation(self) -> str:
        """Text that contains the labels of all frames. `list_digest` hashes it."""
        return str(self.runs)

    def classes(self, first: int = 0, last: int | None = None) -> set[int]:
        """Return the set of all labels of the frames from `first` to `last` inclusive.

        If `last` is None, use all frames from `first` to the end of the video.
        """
        starts = [0, *(run.end for run in self.runs)]
        return {
            label
            for start, run in zip(starts, self.runs, strict=False)
            if run.end > first and (last is None or start <= last)
            for label in run.labels
        }

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
    folder = os.fspath(prefix or path.parent)
    return _parsed(path, folder, num_classes, fps, status(str(path)))


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


@lru_cache(maxsize=2)
def _parsed(
    path: Path, folder: str, num_classes: int, fps: float, changed: object
) -> SharedList[FrameVideo]:
    """Read a list. The results for the last two lists are cached.

    A run reads the training and the validation list twice: to check them before it starts, and in
    the data sets. `changed` is part of the cache key, so that a modified file is read again.
    """
    places = dict[int, str]()
    videos = SharedList(_parse(path, folder, fps, places))
    if not videos:
        raise ValueError(f"the frame list {path} contains no frames")
    check_labels(path, places, num_classes)
    return videos


def is_frame_list(path: Path) -> bool:
    """Return whether the first line of a file is the header of a frame list."""
    with path.open("rb") as file:
        return _is_header(next(_split(file), []))


def _parse(path: Path, folder: str, fps: float, places: dict[int, str]) -> Iterator[FrameVideo]:
    """Yield the videos of a list. Add the video in which each label first occurs to `places`."""
    seen = set[bytes]()
    with path.open("rb") as file:
        rows = _split(file)
        if not _is_header(next(rows, [])):
            read_utf8(path)  # raises a clearer error if the file is not UTF-8
            raise ValueError(f"{path}: the first line is not the header '{HEADER}'")
        for name, group in groupby(rows, itemgetter(0)):
            try:
                if name in seen:
                    raise ValueError("the lines of the video are not consecutive")
                paths, labels = _columns(list(group))
                runs = tuple(_runs(labels))
            except ValueError as error:
                raise ValueError(f"{path}, video {os.fsdecode(name)}: {error}") from None
            seen.add(name)
            for label in {label for run in runs for label in run.labels} - places.keys():
                places[label] = f"video {os.fsdecode(name)}"
            packed = zlib.compress(b"\n".join(paths), 1)
            yield FrameVideo(os.fsdecode(name), folder, packed, runs, fps)


def _split(lines: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Yield the list of fields of each line. Skip blank lines."""
    return filter(None, (line.removeprefix(_BOM).split() for line in lines))


def _is_header(row: Sequence[bytes]) -> bool:
    return os.fsdecode(b" ".join(row)) in _HEADERS


def _columns(rows: Sequence[Sequence[bytes]]) -> tuple[Sequence[bytes], Sequence[bytes]]:
    """Return the paths and the labels in the lines of one video.

    Raises:
        ValueError: A line has a wrong number of fields, or the frame ids do not increase.
    """
    if set(map(len, rows)) != {_FIELDS}:
        raise ValueError(f"a line does not have the {_FIELDS} fields of '{HEADER}'")
    _, _, ids, paths, labels = zip(*rows, strict=True)
    numbers = list(map(int, ids))
    if not all(map(lt, numbers, numbers[1:])):
        raise ValueError("the frame ids are not in ascending order")
    return paths, labels


@lru_cache(maxsize=1 << 16)
def _labels(field: bytes) -> tuple[int, ...]:
    """Parse the field of labels: '"3,5"' becomes (3, 5), and '""' becomes ()."""
    return tuple(map(int, field.strip(b'"').split(b","))) if field.strip(b'"') else ()


def _runs(fields: Sequence[bytes]) -> Iterator[LabelledFrames]:
    end = 0
    for field, group in groupby(fields):
        end += len(list(group))
        yield LabelledFrames(end, _labels(field))
