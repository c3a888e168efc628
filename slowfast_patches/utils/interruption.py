"""Exit statuses of the programs, and the error that ends an interrupted training.

This module must not import slow packages.
"""

from __future__ import annotations

import os

BUG_STATUS = 1
MISTAKE_STATUS = 2
INTERRUPTED_STATUS = 75
"""Exit status of an interrupted training that can be resumed (EX_TEMPFAIL of sysexits.h)."""
BY_HAND_STATUS = 130
"""Exit status after Ctrl-C. Shells use the same status."""
STOPPED_BEFORE_START = "stopped by {} before the training began. Repeat the command to start it."


class TrainingInterruptedError(BaseException):
    """Error raised when a signal has stopped a training that can be resumed.

    Like KeyboardInterrupt, this is not a subclass of Exception. A signal handler may raise it while
    library code runs, and an `except Exception` there must not catch it.
    """


def interrupted_status() -> int:
    """Return the exit status of an interrupted training.

    It is 0 under `torchrun --max-restarts`, because torchrun restarts processes that exit with any
    other status.
    """
    restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    return INTERRUPTED_STATUS if restarts == "0" else 0
