"""Why a training ends before its schedule does."""

from __future__ import annotations

__all__ = ["INTERRUPTED_STATUS", "TrainingInterruptedError", "TrainingStoppedError"]

INTERRUPTED_STATUS = 75
"""Exit status of run_net after TrainingInterruptedError: EX_TEMPFAIL of sysexits.h."""


class TrainingStoppedError(RuntimeError):
    """The training cannot go on; the message says why and where."""


class TrainingInterruptedError(RuntimeError):
    """A signal asked to stop: the training has saved, and goes on when started again."""
