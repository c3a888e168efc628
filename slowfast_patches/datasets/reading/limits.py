"""Limits on the memory and processor time that reading one video may take."""

from __future__ import annotations

import time
from dataclasses import dataclass

from slowfast_patches.datasets.reading.video_record import UnreadableVideoError

_SECONDS_PER_FRAME = 0.1
"""Processor time allowed per frame, in addition to `ReadingLimits.seconds`. This is enough even for
frames of 8192 × 8192 pixels."""


@dataclass(frozen=True)
class ReadingLimits:
    """Limits on one video. The methods raise `UnreadableVideoError` if a limit is exceeded.

    Attributes:
        pixels: Maximum number of pixels in a frame.
        frames: Maximum number of frames in a video file. A scan needs about 250 bytes of memory per
            frame.
        bytes: Maximum size in bytes of a JPEG file or of a packet of a video file. JPEG files and
            packets are read into memory as a whole.
        seconds: Maximum processor time of one read in seconds, in addition to 0.1 s per frame. Time
            spent waiting for the disk does not count.
    """

    pixels: int = 1 << 26
    frames: int = 1 << 22
    bytes: int = 1 << 28
    seconds: float = 30.0

    def check_pixels(self, width: int, height: int) -> None:
        """Raise an error if a frame of this size has more than `pixels` pixels."""
        if width * height > self.pixels:
            raise UnreadableVideoError(
                f"has frames of {width}×{height} pixels, more than DATA.MAX_FRAME_PIXELS "
                f"{self.pixels}"
            )

    def check_frames(self, count: int) -> None:
        """Raise an error if a video has more than `frames` frames."""
        if count > self.frames:
            raise UnreadableVideoError(
                f"has more frames or audio samples than DATA.MAX_VIDEO_FRAMES {self.frames}"
            )

    def check_bytes(self, size: int, name: str = "") -> None:
        """Raise an error if a packet or file has more than `bytes` bytes.

        Args:
            size: Size of the packet or file in bytes.
            name: Name of the packet or file in the error message.
        """
        if size > self.bytes:
            raise UnreadableVideoError(
                f"cannot be decoded: {name or 'a frame'} has {size} bytes, more than "
                f"DATA.MAX_FRAME_BYTES {self.bytes}"
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

        Args:
            frames: Number of frames by which the limit is extended.

        Raises:
            UnreadableVideoError: The thread has used more processor time than allowed.
        """
        self._end += frames * _SECONDS_PER_FRAME
        if time.thread_time() > self._end:
            raise UnreadableVideoError(
                "takes too long to decode: more processor time than DATA.MAX_READ_SECONDS "
                f"{self._seconds:g} plus 0.1 s per frame"
            )
