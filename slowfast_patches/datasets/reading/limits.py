"""Limits on the memory and the processor time that reading a video may take."""

from __future__ import annotations

import time
from dataclasses import dataclass

from slowfast_patches.datasets.reading.errors import UnreadableVideoError

_SECONDS_PER_FRAME = 0.1
"""Processor time allowed per frame, in addition to `ReadingLimits.seconds`. This is enough even for
frames of 8192 × 8192 pixels."""


@dataclass(frozen=True)
class ReadingLimits:
    """Limits on one video.

    Attributes:
        pixels: Maximum number of pixels in a frame.
        seconds: Maximum processor time of one read in seconds, in addition to 0.1 s per frame. Time
            spent waiting for the disk does not count.
    """

    pixels: int = 1 << 26
    seconds: float = 30.0

    def check_pixels(self, width: int, height: int) -> None:
        """Check the size of a frame.

        Raises:
            UnreadableVideoError: The frame is too large.
        """
        if width * height > self.pixels:
            raise UnreadableVideoError(
                f"has frames of {width}×{height} pixels, more than DATA.MAX_FRAME_PIXELS "
                f"{self.pixels}"
            )


LIMITS = ReadingLimits()
"""Default limits. The configuration keys DATA.MAX_... have the same default values."""


class TimeLimit:
    """Limit on the processor time that the current thread spends on one read."""

    def __init__(self, limits: ReadingLimits) -> None:
        self._seconds = limits.seconds
        self._end = time.thread_time() + limits.seconds

    def check(self, frames: int = 1) -> None:
        """Check the time used so far, after extending the limit by 0.1 s for each new frame.

        Raises:
            UnreadableVideoError: The thread has used more processor time than allowed.
        """
        self._end += frames * _SECONDS_PER_FRAME
        if time.thread_time() > self._end:
            raise UnreadableVideoError(
                "takes too long to decode: more processor time than DATA.MAX_READ_SECONDS "
                f"{self._seconds:g} plus 0.1 s per frame"
            )
