"""What makes a video unreadable: errors of the libraries that decode it, and our limits."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import av
import cv2

_DECODE_ERRORS = (av.FFmpegError, cv2.error, OSError, EOFError, MemoryError)
"""Error types that a damaged file can cause. All other errors, such as TypeError, are bugs and end
the run."""
_SECONDS_PER_FRAME = 0.1
"""Processor time allowed per frame, in addition to `ReadingLimits.seconds`. This is enough even for
frames of 8192 × 8192 pixels."""


class UnreadableVideoError(ValueError):
    """Error raised when a video is missing or cannot be decoded. The message gives the reason."""


@contextlib.contextmanager
def translate_decode_errors() -> Iterator[None]:
    """Re-raise errors of PyAV, OpenCV and the operating system as `UnreadableVideoError`."""
    try:
        yield
    except FileNotFoundError as error:
        raise UnreadableVideoError(f"cannot be opened: {reason_of(error)}") from error
    except _DECODE_ERRORS as error:
        raise UnreadableVideoError(f"cannot be decoded: {reason_of(error)}") from error


def reason_of(error: Exception) -> str:
    """Return an error message on one line, without the error number and the path."""
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(reason.split())


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
        """Check the size of a frame."""
        if width * height > self.pixels:
            raise UnreadableVideoError(
                f"has frames of {width}×{height} pixels, more than DATA.MAX_FRAME_PIXELS "
                f"{self.pixels}"
            )

    def check_frames(self, count: int) -> None:
        """Check the number of frames of a video."""
        if count > self.frames:
            raise UnreadableVideoError(
                f"has more frames or audio samples than DATA.MAX_VIDEO_FRAMES {self.frames}"
            )

    def check_bytes(self, size: int, name: str = "a frame") -> None:
        """Check the size in bytes of a packet or file. The message contains `name`."""
        if size > self.bytes:
            raise UnreadableVideoError(
                f"cannot be decoded: {name} has {size} bytes, more than DATA.MAX_FRAME_BYTES "
                f"{self.bytes}"
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
