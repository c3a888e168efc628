"""The record of a video: what the reader must know before it reads a clip."""

from __future__ import annotations

import base64
import json
import math
import zlib
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from multigrid import Video

__all__ = ["Kind", "UnreadableVideoError", "VideoRecord"]

Ints = NDArray[np.int64]


class UnreadableVideoError(ValueError):
    """A video that is missing or does not decode; the message says why."""


class Kind(IntEnum):
    """How the frames of a video are stored."""

    VIDEO = 0  # a video file as it is
    PREPARED = 1  # a video file in the form of `prepared.py`: groups of pictures at known places
    FRAMES = 2  # JPEG files: those in a folder in the order of their names, or those of a list


@dataclass(frozen=True, eq=False)
class VideoRecord:
    """A video as `scan` finds it and the index keeps it.

    Frames are counted from 0 in the order they are shown, whatever their timestamps say.
    """

    kind: Kind
    video: Video  # frames, rate, and size in pixels as shown, after turning
    turns: int = 0  # quarter turns counterclockwise from the stored picture to the shown one
    timestamps: Ints | None = None
    """VIDEO: (frames,) what the decoder says of each frame, in units of the stream's clock; None
    where it says nothing that tells them apart, so that they are counted from the beginning."""
    keys: Ints | None = None
    """VIDEO: frames at which decoding may start, ascending; the first is 0."""
    offsets: Ints | None = None
    """PREPARED: (groups + 1,) bytes of the file at which the groups of pictures begin and end."""
    headers: bytes = b""
    """PREPARED: the decoder's parameters (avcC)."""
    streams: int = 0
    """VIDEO: streams of any kind in the file; 0 if not known."""
    files: tuple[str, ...] | None = None
    """FRAMES: the paths of the frames where a list names them; None for those in the folder."""
    damage: str = ""
    """What keeps the video from being read whole, as far as a scan without decoding tells."""

    def packed(self) -> str:
        """All but `files` and `damage`, in about 150 letters where the frame rate is constant."""
        lists = (self.timestamps, self.keys, self.offsets)
        content = (
            *(int(self.kind), self.video, self.turns, self.streams, self.headers.hex()),
            *(None if n is None else np.diff(n, prepend=0).tolist() for n in lists),
        )
        text = json.dumps(content, separators=(",", ":"))
        return base64.b64encode(zlib.compress(text.encode())).decode()

    @classmethod
    def unpacked(cls, content: str) -> VideoRecord:
        """The record that was packed; UnreadableVideoError if `packed` did not give this."""
        try:
            kind, video, turns, streams, headers, *lists = json.loads(
                zlib.decompress(base64.b64decode(content))
            )
            if not all(0 < number < math.inf for number in video):
                raise ValueError(video)
            numbers = [None if n is None else np.cumsum(n, dtype=np.int64) for n in lists]
            timestamps, keys, offsets = numbers
            return cls(
                *(Kind(kind), Video(*video), turns, timestamps, keys, offsets),
                headers=bytes.fromhex(headers),
                streams=streams,
            )
        except (ValueError, TypeError, zlib.error) as error:
            raise UnreadableVideoError(f"is damaged in the index: {error}") from error
