"""The error for a video that cannot be read, and the library errors that it replaces."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import av
import cv2

from slowfast_patches.utils.errors import UserError

_DECODE_ERRORS = (av.FFmpegError, cv2.error, OSError, EOFError, MemoryError)
"""Error types that a damaged file can cause. All other errors, such as TypeError, are bugs and end
the run."""


DEMUX_ERRORS = (av.InvalidDataError, IndexError)
"""Errors of `demux` at the damaged end of a file. PyAV raises IndexError for a packet of a stream
that begins within the file, as damage in an MPEG transport stream can seem to show."""


class UnreadableVideoError(UserError):
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
