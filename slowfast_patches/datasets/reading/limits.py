"""Limits on the resources that reading one video may take."""

from __future__ import annotations

import time
from dataclasses import dataclass

from slowfast_patches.datasets.reading.video_record import UnreadableVideoError

_SECONDS_PER_FRAME = 0.1
"""Time allowed per frame. Decoding a frame of 8192² pixels takes less."""


@dataclass(frozen=True)
class ReadingLimits:
    """Limits on one video. Each method raises `UnreadableVideoError` beyond its limit.

    Attributes:
        pixels: Maximum pixels of a frame.
        frames: Maximum frames of a video file. A scan takes about 250 bytes of memory per frame.
        bytes: Maximum size of a JPEG file or of a packet of a video file. Both are read as a whole.
        seconds: Maximum processor time of one read, plus 0.1 s per frame. Time spent waiting for a
            disk does not count.
    """

    pixels: int = 1 << 26
    frames: int = 1 << 22
    bytes: int = 1 << 28
    seconds: float = 30.0

    def check_pixels(self, width: int, height: int) -> None:
        """Check the size of a frame."""
        if width * height > self.pixels:
            raise UnreadableVideoError(
                f"has frames of {width}×{height} pixels, more than DATA.MAX_FRAME_PIXELS "
                f"{self.pixels}"
            )

    def check_frames(self, count: int) -> None:
        """Check the number of frames."""
        if count > self.frames:
            raise UnreadableVideoError(
                f"has more frames or audio samples than DATA.MAX_VIDEO_FRAMES {self.frames}"
            )

    def check_bytes(self, size: int, name: str = "") -> None:
        """Check the size of a packet or file."""
        if size > self.bytes:
            raise UnreadableVideoError(
                f"cannot be decoded: {name or 'a frame'} has {size} bytes, more than "
                f"DATA.MAX_FRAME_BYTES {self.bytes}"
            )


LIMITS = ReadingLimits()
"""Default limits, equal to the defaults of the keys DATA.MAX_..."""


class TimeLimit:
    """Limit on the processor time of one read in this thread."""

    def __init__(self, limits: ReadingLimits) -> None:
        self._seconds = limits.seconds
        self._end = time.thread_time() + limits.seconds

    def check(self, frames: int = 1) -> None:
        """Add time for `frames` frames, and raise `UnreadableVideoError` after the limit."""
        self._end += frames * _SECONDS_PER_FRAME
        if time.thread_time() > self._end:
            raise UnreadableVideoError(
                f"takes too long to decode: more than DATA.MAX_READ_SECONDS {self._seconds:g} of "
                "processor time and a tenth of a second for each frame"
            )
