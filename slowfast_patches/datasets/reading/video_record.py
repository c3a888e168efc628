"""Record of a video: what the reader must know before it reads a clip."""

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

Ints = NDArray[np.int64]


class UnreadableVideoError(ValueError):
    """Error raised when a video is missing or does not decode. The message gives the reason."""


class Kind(IntEnum):
    """How the frames of a video are stored."""

    VIDEO = 0  # a video file in its original form
    PREPARED = 1  # a video file in the form described in `prepared.py`
    FRAMES = 2  # JPEG files in a folder, sorted by name, or named in a list


@dataclass(frozen=True, eq=False)
class VideoRecord:
    """Properties of a video that `scan` determines and the index stores.

    Frames are numbered from 0 in display order, regardless of their timestamps.
    """

    kind: Kind
    video: Video  # number of frames, frame rate, displayed width and height
    turns: int = 0  # quarter turns counterclockwise from the stored to the displayed picture
    timestamps: Ints | None = None
    """VIDEO: (frames,) timestamps in units of the stream's time base. None if they are missing or
    not distinct. Frames are then counted from the beginning."""
    keys: Ints | None = None
    """VIDEO: frames at which decoding can start, ascending. The first is 0."""
    offsets: Ints | None = None
    """PREPARED: (groups + 1,) byte offsets at which the groups of pictures begin and end."""
    headers: bytes = b""
    """PREPARED: the decoder's parameters (avcC)."""
    streams: int = 0
    """VIDEO: number of streams of any kind in the file, or 0 if unknown."""
    files: tuple[str, ...] | None = None
    """FRAMES: the paths of the frames if a list names them. None for a folder."""
    damage: str = ""
    """Why the video can be read only in part, as far as a scan without decoding can tell."""

    def packed(self) -> str:
        """Serialize all fields except `files` and `damage`.

        The text has about 150 characters if the frame rate is constant.
        """
        lists = (self.timestamps, self.keys, self.offsets)
        content = (
            *(int(self.kind), self.video, self.turns, self.streams, self.headers.hex()),
            *(None if n is None else np.diff(n, prepend=0).tolist() for n in lists),
        )
        text = json.dumps(content, separators=(",", ":"))
        return base64.b64encode(zlib.compress(text.encode())).decode()

    @classmethod
    def unpacked(cls, content: str) -> VideoRecord:
        """Restore a record from the text returned by `packed`.

        Raises:
            UnreadableVideoError: The text is damaged.
        """
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
            raise UnreadableVideoError(f"has a damaged index entry: {error}") from error
