"""What an index holds of a list of videos.

A row a video; of variable length, one after another, are the path, the reason why it cannot be
read, where decoding may start (key frames, or groups of a prepared file), and the timestamps where
these are no straight line. Numbers that ascend are kept as what each adds to the one before.

There is no Python object a video: processes that are forked share it all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from multigrid import Video
from slowfast_patches.datasets.reading.video_record import Kind, UnreadableVideoError, VideoRecord

__all__ = ["COUNTED", "LINE", "LISTED", "ROW", "UNREADABLE", "Entry", "Lists", "Table"]

Ints = NDArray[np.int64]

UNREADABLE = 255
"""In the place of a kind: the video has a reason and no record."""
COUNTED, LINE, LISTED = range(3)
"""Timestamps: there are none; they are on a line (`_on_line`); all of them are listed."""

ROW = np.dtype(
    [
        ("size", "<i8"),  # bytes of the file, or JPEG files in the folder
        ("modified", "<i8"),  # ns
        ("kind", "<u1"),
        ("turns", "<u1"),
        ("streams", "<i4"),
        ("frames", "<i4"),
        ("width", "<i4"),
        ("height", "<i4"),
        ("fps", "<f8"),
        ("clock", "<u1"),
        ("start", "<i8"),
        ("step", "<i8"),
        ("fraction", "<u4"),
        ("phase", "<u4"),
        ("header", "<i4"),  # its number among the distinct ones
    ]
)

_ONE = 1 << 32


class Entry(NamedTuple):
    """What was found out about one video, as a table keeps it."""

    row: tuple[float, ...] = (UNREADABLE, *(0,) * (len(ROW.names or ()) - 4))
    """The fields of a row from `kind` to `phase`."""
    places: Ints = np.zeros(0, np.int64)
    stamps: Ints = np.zeros(0, np.int64)
    header: bytes = b""
    reason: str = ""

    @classmethod
    def of(cls, record: VideoRecord) -> Self:
        """The entry from which a table makes this record again."""
        nothing = np.zeros(0, np.int64)
        clock, line, stamps = COUNTED, (0, 0, 0, 0), nothing
        if record.timestamps is not None:
            found = _line(record.timestamps)
            if found is not None:
                clock, line = LINE, found
            else:
                clock, stamps = LISTED, _added(record.timestamps)
        frames, fps, width, height = record.video
        row = (record.kind, record.turns, record.streams, frames, width, height, fps, clock, *line)
        places = record.offsets if record.kind == Kind.PREPARED else record.keys
        return cls(row, nothing if places is None else _added(places), stamps, record.headers)


class Lists(NamedTuple):
    """Lists of numbers of any length one after another; `ends` (lists + 1,) parts them."""

    values: NDArray[Any]
    ends: Ints

    @classmethod
    def of(cls, lists: Iterable[NDArray[Any]], dtype: type) -> Lists:
        parts = [np.zeros(0, dtype), *lists]
        ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
        return cls(_narrow(np.concatenate(parts)), ends)

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> Lists:
        encoded = (text.encode("utf-8", "surrogatepass") for text in texts)
        return cls.of((np.frombuffer(text, np.uint8) for text in encoded), np.uint8)

    def at(self, number: int) -> NDArray[Any]:
        return self.values[self.ends[number] : self.ends[number + 1]]

    def texts(self) -> list[str]:
        content, ends = self.values.tobytes(), self.ends.tolist()
        parts = pairwise(ends)
        return [content[a:b].decode("utf-8", "surrogatepass") for a, b in parts]

    def take(self, numbers: Ints) -> Lists:
        counts = np.diff(self.ends)[numbers]
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        shift = self.ends[numbers] - ends[:-1]
        values = self.values[np.arange(ends[-1]) + np.repeat(shift, counts)]
        return Lists(_narrow(values), ends)

    def joined(self, other: Lists) -> Lists:
        values = np.concatenate([self.values, other.values])
        return Lists(values, np.concatenate([self.ends, self.ends[-1] + other.ends[1:]]))


@dataclass(frozen=True, eq=False)
class Table:
    """All that is known of some videos, a row each."""

    rows: NDArray[np.void]
    """(videos,) of dtype ROW."""
    paths: Lists
    reasons: Lists
    places: Lists
    stamps: Lists
    headers: tuple[bytes, ...]
    """The distinct ones, sorted; the first is empty."""

    @classmethod
    def of(cls, paths: Sequence[str], status: Ints, entries: Sequence[Entry]) -> Table:
        """What was found at some paths; `status` (videos, 2) is the size and time of each."""
        headers = tuple(sorted({b"", *(entry.header for entry in entries)}))
        number = {header: number for number, header in enumerate(headers)}
        pairs = zip(status.tolist(), entries, strict=True)
        rows = [(*stat, *entry.row, number[entry.header]) for stat, entry in pairs]
        return cls(
            np.array(rows, ROW),
            Lists.of_texts(paths),
            Lists.of_texts(entry.reason for entry in entries),
            Lists.of((entry.places for entry in entries), np.int64),
            Lists.of((entry.stamps for entry in entries), np.int64),
            headers,
        )

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def is_readable(self) -> NDArray[np.bool_]:
        """(videos,) whether there is a record."""
        return cast(NDArray[np.bool_], self.rows["kind"] != UNREADABLE)

    def reason(self, number: int) -> str:
        """Why a video cannot be read; empty if it can."""
        return self.reasons.at(number).tobytes().decode("utf-8", "surrogatepass")

    def record(self, number: int) -> VideoRecord:
        """The record of a video.

        Raises:
            UnreadableVideoError: it has none; says why.
        """
        row: tuple[Any, ...] = self.rows[number].item()
        _, _, kind, turns, streams, frames, width, height, fps, clock, *line, header = row
        if kind == UNREADABLE:
            raise UnreadableVideoError(self.reason(number))
        video = Video(frames, fps, width, height)
        if kind == Kind.FRAMES:
            return VideoRecord(Kind.FRAMES, video, turns)
        places = np.cumsum(self.places.at(number), dtype=np.int64)
        if kind == Kind.PREPARED:
            headers = self.headers[header]
            return VideoRecord(Kind.PREPARED, video, turns, offsets=places, headers=headers)
        timestamps = None
        if clock == LINE:
            timestamps = _on_line(frames, *line)
        elif clock == LISTED:
            timestamps = np.cumsum(self.stamps.at(number), dtype=np.int64)
        return VideoRecord(Kind.VIDEO, video, turns, timestamps, places, streams=streams)

    def take(self, numbers: Ints) -> Table:
        """Some of the rows, in the order given."""
        used, header = np.unique(self.rows["header"][numbers], return_inverse=True)
        headers = tuple(self.headers[n] for n in used)
        rows = self.rows[numbers]
        rows["header"] = header
        if headers[:1] != (b"",):
            headers, rows["header"] = (b"", *headers), rows["header"] + 1
        return Table(
            rows,
            self.paths.take(numbers),
            self.reasons.take(numbers),
            self.places.take(numbers),
            self.stamps.take(numbers),
            headers,
        )

    def joined(self, other: Table) -> Table:
        """The rows of both."""
        headers = tuple(sorted({*self.headers, *other.headers}))
        number = {header: number for number, header in enumerate(headers)}
        rows = np.concatenate([self.rows, other.rows])
        rows["header"] = [
            number[table.headers[header]]
            for table in (self, other)
            for header in table.rows["header"].tolist()
        ]
        return Table(
            rows,
            self.paths.joined(other.paths),
            self.reasons.joined(other.reasons),
            self.places.joined(other.places),
            self.stamps.joined(other.stamps),
            headers,
        )


def _added(values: Ints) -> Ints:
    """What each value adds to the one before, the first to 0; overflows cancel when summed up."""
    return np.diff(values, prepend=values.dtype.type(0))


def _narrow(values: NDArray[Any]) -> NDArray[Any]:
    """The same numbers in 32 bits where they fit."""
    if values.dtype == np.int64 and (values == values.astype(np.int32)).all():
        return values.astype(np.int32)
    return values


def _on_line(frames: int, start: int, step: int, fraction: int, phase: int) -> Ints:
    """start + i * step + (i * fraction + phase) / 2^32, rounded down, for i below `frames`."""
    number = np.arange(frames)
    values = number * step + start
    return values + (number * fraction + phase >> 32) if fraction else values


def _line(values: Ints) -> tuple[int, int, int, int] | None:
    """The line on which all values are, exactly: start, step, fraction, phase. None if on none.

    Constant rates are lines, and so are those that a container rounded to its clock: at 30 frames
    per second Matroska's milliseconds go 0, 33, 67, 100. A fraction f fits if the numbers
    rises[i] - f * i lie within less than 1. That spread is convex in f: halve towards the smallest.
    """
    steps = np.diff(values)
    if len(steps) == 0:
        return int(values[0]), 0, 0, 0
    start, step, number = int(values[0]), int(steps.min()), np.arange(len(values))
    if int(steps.max()) - step > 1:
        return None
    rises = values - start - step * number
    middle = (int(rises[-1]) << 32) // len(steps)
    low, high = middle - 2 * _ONE // len(steps), middle + 2 * _ONE // len(steps)
    while low < high:
        above = (rises << 32) - middle * number
        most, least = int(above.argmax()), int(above.argmin())
        if above[most] - above[least] < _ONE:
            line = start, step, middle, int(above[most])
            return line if np.array_equal(_on_line(len(values), *line), values) else None
        if most > least:
            low = middle + 1
        else:
            high = middle
        middle = (low + high) // 2
    return None
