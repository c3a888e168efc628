"""Why a training ends before its schedule does."""

from __future__ import annotations

__all__ = ["INTERRUPTED_STATUS", "TrainingInterruptedError", "TrainingStoppedError"]

INTERRUPTED_STATUS = 75
"""Exit status of an interrupted training: EX_TEMPFAIL of sysexits.h, try again."""


class TrainingStoppedError(RuntimeError):
    """The training cannot go on; the message says why and where."""


class TrainingInterruptedError(RuntimeError):
    """A signal asked the training to stop; it has saved, and goes on when started again."""
