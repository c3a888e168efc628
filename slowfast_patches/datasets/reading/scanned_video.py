"""Scanned videos: what is known of one video and of all videos of a list before a clip is read."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from multigrid import Video, Window
from slowfast_patches.datasets.reading.timing import moments_of
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError

T = TypeVar("T", covariant=True)

Image = NDArray[np.uint8]
Ints = NDArray[np.int64]


class Kind(IntEnum):
    """How the frames of a video are stored."""

    VIDEO = 0  # an ordinary video file
    PREPARED = 1  # a video file written by multigrid-prepare, as described in `prepared.py`
    FRAMES = 2  # JPEG files, either all files of a folder in the order of their names, or listed


class Orientation(NamedTuple):
    """How to show a stored picture: mirror it left to right if `mirrored`, and then rotate it."""

    turns: int = 0  # quarter turns counterclockwise
    mirrored: bool = False

    def shown(self, image: Image) -> Image:
        """Rotate and mirror a stored picture (H, W, ...) for display. The result is a view."""
        if not any(self):  # np.rot90 is slow
            return image
        return np.rot90(image[:, ::-1] if self.mirrored else image, self.turns)

    def turned_size(self, width: int, height: int) -> tuple[int, int]:
        """Swap the width and height if a rotation swaps them."""
        return (height, width) if self.turns % 2 else (width, height)

    def stored(self, window: Window) -> Window:
        """Transform a window from the shown to the stored picture.

        Both windows are in coordinates from 0 to 1 relative to the sides of the picture.
        """
        x, y, w, h = window.x, window.y, window.width, window.height
        for _ in range(self.turns):
            x, y, w, h = 1 - y - h, x, h, w
        return Window(1 - x - w if self.mirrored else x, y, w, h)


UPRIGHT = Orientation()


class Part(NamedTuple):
    """Part of a stored picture, in coordinates from 0 to 1 relative to the sides of the picture."""

    x: float = 0.0
    y: float = 0.0
    width: float = 1.0
    height: float = 1.0

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height in pixels of the part of a picture."""
        return max(1, round(self.width * width)), max(1, round(self.height * height))

    def slices(self, width: int, height: int) -> tuple[slice, slice]:
        """Return the rows and the columns of the part of a picture."""
        columns, rows = self.size(width, height)
        left, top = round(self.x * width), round(self.y * height)
        return slice(top, top + rows), slice(left, left + columns)

    def within(self, window: Window) -> Window:
        """Convert a window of the part, in coordinates from 0 to 1, to the whole picture."""
        return Window(
            self.x + window.x * self.width,
            self.y + window.y * self.height,
            window.width * self.width,
            window.height * self.height,
        )


WHOLE = Part()


@dataclass(frozen=True, eq=False)
class ScannedVideo:
    """Properties of a video that `scan` determines and the index stores.

    Frame indices count from 0 in display order, regardless of the timestamps. Some fields
    apply to a single `Kind` only. The description of such a field starts with the kind.
    """

    kind: Kind
    video: Video
    """Number of frames, frame rate, displayed width and height, and the moments of the frames if
    the frame rate varies."""
    orientation: Orientation = UPRIGHT  # how the stored picture is shown
    timestamps: Ints | None = None
    """VIDEO: (frames,) timestamps in units of the stream's time base. None if timestamps are
    missing or not distinct. Frames are then identified by counting from the beginning."""
    keys: Ints | None = None
    """VIDEO: indices of the frames at which decoding can start, ascending. The first is 0."""
    offsets: Ints | None = None
    """PREPARED: (groups + 1,) byte offsets of the beginning of each group of pictures, followed by
    the end of the last group."""
    headers: bytes = b""
    """PREPARED: parameters of the decoder (avcC)."""
    streams: int = 0
    """VIDEO: number of streams in the file, including audio. 0 if unknown."""
    times: Ints | None = None
    """VIDEO, PREPARED: (frames,) times at which the frames are shown, ascending, in units of the
    stream's time base. None if the frame rate is constant."""
    crop: Part = WHOLE
    """VIDEO: part of the stored picture that is shown."""
    is_in_step: bool = True
    """VIDEO: whether each packet holds one frame, whose timestamp is that of the packet. Otherwise
    frames can only be taken as the decoder returns them."""
    files: tuple[str, ...] | None = None
    """FRAMES: paths of the frames if a list gives them. None means all files of a folder."""
    damage: str = ""
    """Description of the part of the video that cannot be read, or "" if the scan found no damage.
    The scan does not decode every frame, so it can miss damage."""
    timing: str = ""
    """Description of an unusual frame rate (`FrameTiming.remark`), or ""."""

    @property
    def can_seek(self) -> bool:
        """VIDEO: whether decoding can start at another frame than the first."""
        return self.keys is not None and len(self.keys) > 1

    def packed(self) -> str:
        """Return a text that contains all fields except `files`, `damage` and `timing`.

        The text has about 150 characters if the frame rate is constant.
        """
        lists = (self.timestamps, self.keys, self.offsets, self.times)
        content = (
            *(int(self.kind), self.video[:4], self.orientation, self.streams, self.headers.hex()),
            *(self.crop, self.is_in_step),
            *(None if n is None else np.diff(n, prepend=0).tolist() for n in lists),
        )
        text = json.dumps(content, separators=(",", ":"))
        return base64.b64encode(zlib.compress(text.encode())).decode()

    @classmethod
    def unpacked(cls, content: str) -> ScannedVideo:
        """Restore a video from the text returned by `packed`."""
        kind, video, orientation, streams, headers, crop, is_in_step, *lists = json.loads(
            zlib.decompress(base64.b64decode(content))
        )
        numbers = [None if n is None else np.cumsum(n, dtype=np.int64) for n in lists]
        timestamps, keys, offsets, times = numbers
        shown = Video(*video)
        return cls(
            Kind(kind),
            shown if times is None else shown._replace(moments=moments_of(times, shown.fps)),
            *(Orientation(*orientation), timestamps, keys, offsets),
            headers=bytes.fromhex(headers),
            streams=streams,
            times=times,
            crop=Part(*crop),
            is_in_step=is_in_step,
        )


class ScannedVideos:
    """The scanned videos of a list, by the index of the video in the list.

    Args:
        csv: The path of the list.
        rows: For each video, `ScannedVideo.packed()`, the reason why it is unreadable or "", and
            whether seeks work.
        unreadable: (path, reason) of each unreadable video.
        content: Hash of the size and of the scan of each video, which stays the same if the videos
            are copied.
        times: Hash of the modification times of all videos.
    """

    def __init__(
        self,
        csv: Path,
        rows: Iterable[tuple[str, str, bool]],
        unreadable: Sequence[tuple[str, str]],
        content: str,
        times: str,
    ) -> None:
        self.csv = csv
        self.unreadable = unreadable
        self.content = content
        self.times = times
        self._rows = SharedList(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> ScannedVideo:
        """Return a scanned video.

        Raises:
            UnreadableVideoError: The video could not be scanned.
        """
        packed, reason, seeks = self._rows[number]
        if reason:
            raise UnreadableVideoError(reason)
        try:
            scanned = ScannedVideo.unpacked(packed)
        except (ValueError, TypeError, zlib.error) as error:
            raise UnreadableVideoError(
                "has a damaged entry in the index. Delete the index, and the next run scans again"
            ) from error
        return scanned if seeks else replace(scanned, keys=np.zeros(1, np.int64))


class SharedList(Sequence[T]):
    """Read-only list that stores all its items, pickled, in one byte array.

    If a forked worker reads an ordinary Python list, the reference counts of the items change, so
    the operating system copies the memory pages for each worker. Lists of videos may have millions
    of items, so the copies would need too much memory.
    """

    def __init__(self, items: Iterable[T]) -> None:
        data = bytearray()
        ends = array("q", [0])
        for item in items:
            data += pickle.dumps(item)
            ends.append(len(data))
        self._ends = np.frombuffer(ends, np.int64)
        self._data = np.frombuffer(data, np.uint8)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, number: Any) -> Any:
        row = range(len(self))[number]
        if isinstance(row, range):  # `number` is a slice
            return [self[each] for each in row]
        return pickle.loads(self._data[self._ends[row] : self._ends[row + 1]].data)
