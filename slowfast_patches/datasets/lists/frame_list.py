"""Frame lists: csv files that name the frames of videos, and their labels, one frame a line.

    original_vido_id video_id frame_id path labels
    46GP8 0 0 46GP8/46GP8-000001.jpg ""
    46GP8 0 1 46GP8/46GP8-000002.jpg "92,147"

This is what users have on disk for Something-Something and Charades, slip of the pen included. Such
a list has millions of lines: it is read in one pass, and kept as a few bytes a frame in arrays,
which processes that are forked share.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from operator import itemgetter, lt
from pathlib import Path
from typing import NamedTuple

import numpy as np

from multigrid import Video
from slowfast_patches.datasets.lists.csv_list import missing_list, outside, read_utf8
from slowfast_patches.datasets.reading.files import MAX_PIXELS, jpeg_size
from slowfast_patches.datasets.reading.ragged import Ragged
from slowfast_patches.datasets.reading.video_record import Kind, VideoRecord

__all__ = [
    "HEADER",
    "FrameList",
    "FrameVideo",
    "Run",
    "first_line",
    "is_header",
    "read_frame_list",
]

HEADER = "original_vido_id video_id frame_id path labels"
"""The first line, as it is spelled in the lists that are around."""
_HEADERS = (HEADER, HEADER.replace("vido", "video"))
_FIELDS = len(HEADER.split())
_BOM = b"\xef\xbb\xbf"
_QUOTE = b'"'


class Run(NamedTuple):
    """Frames of a video, one after another, that have the same labels; `end` is exclusive."""

    end: int
    labels: tuple[int, ...]


@dataclass(frozen=True)
class FrameVideo:
    """A video of a frame list."""

    name: str
    files: tuple[str, ...]
    """Paths of its frames, in the order they are shown."""
    runs: tuple[Run, ...]
    fps: float

    @property
    def path(self) -> str:
        """The folder of its first frame."""
        return os.path.dirname(self.files[0])

    @property
    def label(self) -> int:
        """The label of a video that has one alone, on all of its frames."""
        ((_, (label,)),) = self.runs
        return label

    def labels(self, first: int = 0, last: int | None = None) -> set[int]:
        """All labels of the frames from `first` to `last`, inclusive; of all frames by default."""
        labels_seen = set[int]()
        start = 0
        for end, labels in self.runs:
            if end > first and (last is None or start <= last):
                labels_seen.update(labels)
            start = end
        return labels_seen

    def record(self, max_pixels: int = MAX_PIXELS) -> VideoRecord:
        """What the reader has to know of it; the size is that of the first frame.

        Raises:
            UnreadableVideoError: the first frame is missing, no JPEG, or of more than `max_pixels`.
        """
        size = jpeg_size("", self.files[0], max_pixels=max_pixels)
        video = Video(len(self.files), self.fps, *size)
        return VideoRecord(Kind.FRAMES, video, files=self.files)


@dataclass(frozen=True, eq=False)
class FrameList(Sequence[FrameVideo]):
    """The videos of a frame list, in its order; each is made when it is asked for."""

    names: Ragged  # encoded as UTF-8
    paths: Ragged  # a row is the zlib-compressed lines of a video's paths
    runs: Ragged  # a row has an end, a number of labels, and the labels, run by run
    folder: str  # what the paths are relative to
    fps: float

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, number: int) -> FrameVideo:  # type: ignore[override]  # of one
        number = range(len(self))[number]
        folder = os.path.join(self.folder, "")
        paths = os.fsdecode(zlib.decompress(self.paths[number].tobytes())).split("\n")
        return FrameVideo(
            name=_decoded(self.names[number].tobytes()),
            files=tuple(path if path.startswith("/") else folder + path for path in paths),
            runs=tuple(_unpacked(self.runs[number].tolist())),
            fps=self.fps,
        )

    @property
    def video_names(self) -> list[str]:
        return list(map(_decoded, self.names.to_bytes()))

    @property
    def labels(self) -> set[int]:
        """Those that any frame has."""
        rows = (self.runs[number].tolist() for number in range(len(self)))
        return {label for row in rows for run in _unpacked(row) for label in run.labels}

    def with_labels(self, labels: Sequence[int]) -> FrameList:
        """The same videos with one label each, on all of its frames, in place of the list's."""
        ends = ([*_unpacked(self.runs[n].tolist())][-1].end for n in range(len(self)))
        runs = [[Run(end, (label,))] for end, label in zip(ends, labels, strict=True)]
        return replace(self, runs=_packed(runs))


def read_frame_list(path: Path, *, prefix: str = "", num_classes: int, fps: float) -> FrameList:
    """The videos of a frame list; `fps` is the rate that its frames are taken to have.

    Relative paths start from `prefix`, or from the list's own folder where that is empty.

    Raises:
        ValueError: no such file, another header, or no frames; or, with file and video, a line with
            another number of fields, a video whose lines are not together, frame ids that do not
            ascend, labels that are no integers or outside [0, num_classes).
    """
    if not path.is_file():
        raise ValueError(missing_list(path))
    status = path.stat()
    names, paths, runs = _parsed(path, num_classes, (status.st_mtime_ns, status.st_size))
    return FrameList(names, paths, runs, os.fspath(prefix or path.parent), fps)


@lru_cache(maxsize=2)
def _parsed(path: Path, num_classes: int, changed: object) -> tuple[Ragged, Ragged, Ragged]:
    """Names, paths and runs. The last two lists are kept, training's and validation's: a run looks
    at a list before it starts, and its data sets read it again."""
    paths_of = dict[bytes, bytes]()
    runs = list[list[Run]]()
    for name, rows in _videos(path):
        try:
            if name in paths_of:
                raise ValueError("its lines are not together")
            paths, labels = _columns(rows)
            runs.append(list(_runs(labels, num_classes)))
        except ValueError as error:
            raise ValueError(f"{path}, video {os.fsdecode(name)}: {error}") from None
        paths_of[name] = zlib.compress(b"\n".join(paths), 1)
    if not paths_of:
        raise ValueError(f"{path}: no frames in the list")
    names = (os.fsdecode(name).encode("utf-8", "surrogatepass") for name in paths_of)
    return Ragged.of_bytes(names), Ragged.of_bytes(paths_of.values()), _packed(runs)


def _decoded(name: bytes) -> str:
    return name.decode("utf-8", "surrogatepass")


def first_line(path: Path) -> str:
    """The first line of a list that is not blank; empty where there is none."""
    with path.open("rb") as lines:
        texts = (os.fsdecode(line.removeprefix(_BOM)).strip() for line in lines)
        return next(filter(None, texts), "")


def is_header(line: str) -> bool:
    """Whether a line is that with which frame lists begin, in either spelling."""
    return " ".join(line.split()) in _HEADERS


def _videos(path: Path) -> Iterator[tuple[bytes, list[list[bytes]]]]:
    """The name of each video and its lines, field by field; blank lines count for nothing."""
    if not is_header(line := first_line(path)):
        read_utf8(path)  # raises for another encoding, in which no header can be recognised
        raise ValueError(f"{path}: the first line, {line!r:.100}, is not the header '{HEADER}'")
    with path.open("rb") as file:
        rows = filter(None, map(bytes.split, file))
        next(rows)
        for name, group in groupby(rows, itemgetter(0)):
            yield name, list(group)


def _columns(rows: Sequence[Sequence[bytes]]) -> tuple[Sequence[bytes], Sequence[bytes]]:
    """Paths and labels of a video's frames, which are to be in their order."""
    if set(map(len, rows)) != {_FIELDS}:
        raise ValueError(f"a line does not have the {_FIELDS} fields of '{HEADER}'")
    _, _, ids, paths, labels = zip(*rows, strict=True)
    numbers = list(map(int, ids))
    if not all(map(lt, numbers, numbers[1:])):
        raise ValueError("its frame ids do not ascend")
    return paths, labels


@lru_cache(maxsize=1 << 16)
def _labels(field: bytes) -> tuple[int, ...]:
    """What a label field stands for: '"3,5"' is (3, 5), '""' is ()."""
    quoted = len(field) >= 2 and field.startswith(_QUOTE) and field.endswith(_QUOTE)
    numbers = field[1:-1] if quoted else field
    return tuple(map(int, numbers.split(b","))) if numbers else ()


def _runs(fields: Sequence[bytes], num_classes: int) -> Iterator[Run]:
    end = 0
    for field, group in groupby(fields):
        labels = _labels(field)
        if wrong := [label for label in labels if not 0 <= label < num_classes]:
            raise ValueError(outside(wrong[0], num_classes))
        end += len(list(group))
        yield Run(end, labels)


def _packed(videos: Sequence[Sequence[Run]]) -> Ragged:
    rows = ([n for run in runs for n in (run.end, len(run.labels), *run.labels)] for runs in videos)
    return Ragged.of(np.array(row, np.int64) for row in rows)


def _unpacked(row: list[int]) -> Iterator[Run]:
    position = 0
    while position < len(row):
        end, count = row[position : position + 2]
        yield Run(end, tuple(row[position + 2 : position + 2 + count]))
        position += 2 + count
