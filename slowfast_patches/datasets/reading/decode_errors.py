"""The error for a video that cannot be read, and the errors of libraries that it replaces.

FFmpeg only logs some errors. These are often the only sign of damage inside pictures.
"""

from __future__ import annotations

import contextlib
import logging
import threading
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


_MAX_KEPT = 4096
"""Number of errors from which on older ones are dropped when a new `ErrorLog` begins."""
_TOO_LARGE = "max pixel count"
_UNSEEN = logging.CRITICAL + 1

_thread = threading.local()


class ErrorLog:
    """Errors that FFmpeg logs from now on in the calling thread.

    FFmpeg decodes in the calling thread, because all decoders have `thread_count` 1. If several
    threads read videos, each sees only the errors of its own videos.
    """

    def __init__(self) -> None:
        self._errors = _errors_of_thread()
        self._seen = len(self._errors)

    def new(self) -> str:
        """Return the latest error since the last call, or "" if there is none.

        Prefer an error about the size of the pictures, because others follow from it.
        """
        seen, self._seen = self._seen, len(self._errors)
        errors = self._errors[seen:]
        if not errors:
            return ""
        sizes = (error for error in errors if _TOO_LARGE in error[2])
        _, name, message = next(sizes, errors[-1])
        return " ".join(f"{name}: {message}".split())


def _errors_of_thread() -> list[tuple[int, str, str]]:
    """Return the list to which PyAV adds the errors of this thread."""
    level = av.logging.get_level()
    if level is None or level < av.logging.ERROR:
        if level is None:  # PyAV shows nothing, so it shows nothing of other threads either
            logging.getLogger("libav").setLevel(_UNSEEN)
        av.logging.set_level(av.logging.ERROR)
    if av.logging.get_skip_repeated():  # the same error in two files counts twice
        av.logging.set_skip_repeated(False)
    errors: list[tuple[int, str, str]] | None = getattr(_thread, "errors", None)
    if errors is None:
        errors = _thread.errors = av.logging.Capture().__enter__()
    if len(errors) > _MAX_KEPT:
        errors.clear()
    return errors
