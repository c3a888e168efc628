"""Why a training ends before its schedule does."""

from __future__ import annotations

__all__ = ["TrainingStoppedError"]


class TrainingStoppedError(RuntimeError):
    """The training cannot go on; the message says why and where."""
