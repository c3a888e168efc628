"""Read frame lists: csv files with the frames of videos and their labels, one frame per line.

    original_vido_id video_id frame_id path labels
    46GP8 0 0 46GP8/46GP8-000001.jpg ""
    46GP8 0 1 46GP8/46GP8-000002.jpg "92,147"

Users have such lists for Something-Something and Charades. The misspelled header is part of the
format. A list has millions of lines, so it is read in one pass and stored in a few bytes per frame.
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
from slowfast_patches.datasets.lists.csv_list import check_label, check_list, read_utf8
from slowfast_patches.datasets.reading.containers import jpeg_size
from slowfast_patches.datasets.reading.limits import LIMITS, ReadingLimits
from slowfast_patches.datasets.reading.shared_list import SharedList
from slowfast_patches.datasets.reading.video_record import Kind, VideoRecord

HEADER = "original_vido_id video_id frame_id path labels"
"""First line of a frame list, as it is misspelled in published lists."""
_HEADERS = (HEADER, HEADER.replace("vido", "video"))
_FIELDS = len(HEADER.split())
_BOM = b"\xef\xbb\xbf"


class LabelledFrames(NamedTuple):
    """Run of consecutive frames with the same labels. `end` is exclusive."""

    end: int
    labels: tuple[int, ...]


@dataclass(frozen=True)
class FrameVideo:
    """Video of a frame list."""

    name: str
    folder: str
    """Folder of relative frame paths."""
    packed: bytes
    """Frame paths, one per line, compressed with zlib."""
    runs: tuple[LabelledFrames, ...]
    fps: float

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the frames, in display order."""
        paths = os.fsdecode(zlib.decompress(self.packed)).split("\n")
        return tuple(os.path.join(self.folder, path) for path in paths)

    @property
    def path(self) -> str:
        """Folder of the first frame."""
        return os.path.dirname(self.files[0])

    @property
    def label(self) -> int:
        """Label of a video that has a single label on all its frames."""
        ((_, (label,)),) = self.runs
        return label

    @property
    def annotation(self) -> str:
        """Text of all labels, for the digest of a list."""
        return str(self.runs)

    def classes(self, first: int = 0, last: int | None = None) -> set[int]:
        """Return all labels of frames `first` to `last`, inclusive. By default use all frames."""
        starts = [0, *(run.end for run in self.runs)]
        return {
            label
            for start, run in zip(starts, self.runs, strict=False)
            if run.end > first and (last is None or start <= last)
            for label in run.labels
        }

    def record(self, limits: ReadingLimits = LIMITS) -> VideoRecord:
        """Return the record of the video, with the size of its first frame.

        Raises:
            UnreadableVideoError: The first frame is missing, is not a JPEG, or is beyond the
                limits.
        """
        files = self.files
        size = jpeg_size("", files[0], limits=limits)
        return VideoRecord(Kind.FRAMES, Video(len(files), self.fps, *size), files=files)


def read_frame_list(
    path: Path, *, prefix: str = "", num_classes: int, fps: float
) -> SharedList[FrameVideo]:
    """Read the videos of a frame list.

    Args:
        path: The list.
        prefix: The folder of relative paths. By default the folder of the list.
        num_classes: Labels must be below this number.
        fps: The frame rate of the videos, which the list does not contain.

    Raises:
        ValueError: The file is missing, has another header or no frames, or a video has an invalid
            line, label or order of frames.
    """
    check_list(path)
    status = path.stat()
    folder = os.fspath(prefix or path.parent)
    return _parsed(path, folder, num_classes, fps, (status.st_mtime_ns, status.st_size))


def read_charades(recipe: Recipe, path: Path, split: str) -> SharedList[FrameVideo]:
    """Read the videos of a frame list with the keys of a recipe.

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
    """Read a list through a cache of two: the training and the validation list.

    A run checks a list before it starts, and its data sets read it again. `changed` is part of the
    cache key, so that a modified file is read again.
    """
    videos = SharedList(_parse(path, folder, num_classes, fps))
    if not videos:
        raise ValueError(f"{path}: no frames in the list")
    return videos


def is_frame_list(path: Path) -> bool:
    """Return whether a list begins with the header of frame lists."""
    with path.open("rb") as file:
        return _is_header(next(_split(file), []))


def _parse(path: Path, folder: str, num_classes: int, fps: float) -> Iterator[FrameVideo]:
    seen = set[bytes]()
    with path.open("rb") as file:
        rows = _split(file)
        if not _is_header(next(rows, [])):
            read_utf8(path)  # raises a clearer error for another encoding
            raise ValueError(f"{path}: the first line is not the header '{HEADER}'")
        for name, group in groupby(rows, itemgetter(0)):
            try:
                if name in seen:
                    raise ValueError("its lines are not consecutive")
                paths, labels = _columns(list(group))
                runs = tuple(_runs(labels, num_classes))
            except ValueError as error:
                raise ValueError(f"{path}, video {os.fsdecode(name)}: {error}") from None
            seen.add(name)
            packed = zlib.compress(b"\n".join(paths), 1)
            yield FrameVideo(os.fsdecode(name), folder, packed, runs, fps)


def _split(lines: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Yield the fields of each line that is not blank."""
    return filter(None, (line.removeprefix(_BOM).split() for line in lines))


def _is_header(row: Sequence[bytes]) -> bool:
    return os.fsdecode(b" ".join(row)) in _HEADERS


def _columns(rows: Sequence[Sequence[bytes]]) -> tuple[Sequence[bytes], Sequence[bytes]]:
    """Return the paths and labels of a video's frames, and check the order of the frames."""
    if set(map(len, rows)) != {_FIELDS}:
        raise ValueError(f"a line does not have the {_FIELDS} fields of '{HEADER}'")
    _, _, ids, paths, labels = zip(*rows, strict=True)
    numbers = list(map(int, ids))
    if not all(map(lt, numbers, numbers[1:])):
        raise ValueError("its frame ids do not ascend")
    return paths, labels


@lru_cache(maxsize=1 << 16)
def _labels(field: bytes) -> tuple[int, ...]:
    """Parse a label field: '"3,5"' becomes (3, 5) and '""' becomes ()."""
    return tuple(map(int, field.strip(b'"').split(b","))) if field.strip(b'"') else ()


def _runs(fields: Sequence[bytes], num_classes: int) -> Iterator[LabelledFrames]:
    end = 0
    for field, group in groupby(fields):
        labels = _labels(field)
        for label in labels:
            check_label(label, num_classes)
        end += len(list(group))
        yield LabelledFrames(end, labels)
