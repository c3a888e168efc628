"""Count the errors that FFmpeg logs, which are often the only sign of damage inside pictures."""

from __future__ import annotations

import av


class ErrorLog:
    """Errors that FFmpeg logs from now on.

    FFmpeg logs for the whole process. If several threads read videos, an error can be attributed to
    the wrong video.
    """

    def __init__(self) -> None:
        # By default, PyAV does not even count errors. At this level, it counts them silently.
        if av.logging.get_level() is None:
            av.logging.set_level(av.logging.PANIC)
        self._count = _latest()[0]

    def new(self) -> str:
        """Return the latest error since the last call, or "" if there is none."""
        count, error = _latest()
        if count == self._count:
            return ""
        self._count = count
        return error


def _latest() -> tuple[int, str]:
    """Return the number of errors that FFmpeg has logged so far, and the latest one."""
    count, entry = av.logging.get_last_error()
    if entry is None:
        return count, ""
    _, name, message = entry
    return count, " ".join(f"{name}: {message}".split())
