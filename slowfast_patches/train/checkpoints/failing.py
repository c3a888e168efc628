"""What a training says that the disk or a worker ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slowfast_patches.launch.stopping import TrainingStoppedError
from slowfast_patches.train.checkpoints.folder import describe_last

__all__ = ["cannot_write", "explain_dead_workers", "writes"]

_DEAD_WORKER = re.compile(r"DataLoader worker \(pid\(?s?\)? [\d, ]+\)")
"""How torch says that a process which reads clips is gone."""


def cannot_write(
    what: str, error: OSError, iteration: int, output_dir: str | Path
) -> TrainingStoppedError:
    """Why the training stops after `iteration` iterations, and how it goes on."""
    return TrainingStoppedError(
        f"{what} cannot be written after iteration {iteration}: {error.strerror or error}; "
        f"{describe_last(output_dir)}. Make room in {output_dir}, or make it writable, and give "
        "the same command again: the training goes on from there"
    )


@contextmanager
def writes(what: str, iteration: int, output_dir: str | Path) -> Iterator[None]:
    """The body writes one of a run's files.

    Raises:
        TrainingStoppedError: it cannot.
    """
    try:
        yield
    except OSError as error:
        raise cannot_write(what, error, iteration, output_dir) from error


@contextmanager
def explain_dead_workers(output_dir: str | Path) -> Iterator[None]:
    """The body uses data loaders, whose workers may be killed.

    Raises:
        TrainingStoppedError: one was. torch says so wherever the process is at that moment.
    """
    try:
        yield
    except RuntimeError as error:
        if not _DEAD_WORKER.match(str(error)):
            raise
        raise TrainingStoppedError(
            f"a process that reads clips was killed ({str(error).splitlines()[0]}); if it was for "
            "memory, lower DATA_LOADER.NUM_WORKERS or ask for more of it. "
            f"{describe_last(output_dir).capitalize()}: give the same command again to go on"
        ) from error
