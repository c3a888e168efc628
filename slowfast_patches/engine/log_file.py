"""A log file whose failure is not overlooked."""

from __future__ import annotations

import logging
import sys

__all__ = ["LogFile", "check_log_files"]


class LogFile(logging.FileHandler):
    """Keeps the error of a record that it cannot write, for `check_log_files`.

    logging's own handler prints a traceback for each record, and the program goes on.
    """

    failure: OSError | None = None

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """Called by logging where a record cannot be written."""
        error = sys.exception()
        if not isinstance(error, OSError):
            super().handleError(record)
        elif self.failure is None:
            self.failure = error
            error.filename = self.baseFilename

    def close(self) -> None:
        """As ever; what could not be written before cannot be now."""
        try:
            super().close()
        except OSError as error:
            self.failure = self.failure or error


def check_log_files() -> None:
    """Raise the OSError of a log file of this process that could not be written, if any."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LogFile) and handler.failure is not None:
            raise handler.failure
