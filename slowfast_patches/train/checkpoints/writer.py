"""Saving while the training goes on, and what is said where the disk refuses."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from slowfast_patches.launch.stopping import TrainingStoppedError
from slowfast_patches.train.checkpoints import folder

__all__ = ["Writer", "snapshot", "writes"]

logger = logging.getLogger(__name__)

Content = Mapping[str, Any]


@contextmanager
def writes(what: str, output_dir: str | Path, when: str = "") -> Iterator[None]:
    """The body writes one of a run's files; TrainingStoppedError where it cannot."""
    try:
        yield
    except OSError as error:
        raise TrainingStoppedError(
            f"{what} cannot be written{when}: {error.strerror or error}; "
            f"{folder.describe_last(output_dir)}. Make room in {output_dir}, or make it writable, "
            "and give the same command again"
        ) from error


class Writer:
    """Writes checkpoints in a thread, one at a time; the training is held up while the state is
    copied, not while the copy is written. `kept` and `milestones` are as of `prune`."""

    def __init__(self, output_dir: str | Path, kept: int, milestones: Collection[int]) -> None:
        self._output_dir, self._kept, self._milestones = output_dir, kept, milestones
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def save(self, iteration: int, state: Content | None, best: Content | None = None) -> None:
        """Begin to write the checkpoint after `iteration` iterations, of `state`, and the best so
        far, of `best`: those that are given, which may change then. Raises as `check`."""
        start = time.perf_counter()
        self.wait()
        contents = snapshot((state, best))
        copied = time.perf_counter() - start
        self._thread = threading.Thread(
            target=self._write, args=(iteration, *contents, copied), name="checkpoint"
        )
        self._thread.start()

    def check(self) -> None:
        """Raise what went wrong in the thread, if anything did, as TrainingStoppedError."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait(self) -> None:
        """Return once nothing is being written; raises as `check`."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def _write(
        self, iteration: int, state: Content | None, best: Content | None, copied: float
    ) -> None:
        start, paths = time.perf_counter(), list[str]()
        try:
            with writes("the checkpoint", self._output_dir, f" after iteration {iteration}"):
                if best is not None:
                    paths.append(f"{folder.save_best(self._output_dir, best)} (the best so far)")
                if state is not None:
                    paths.append(str(folder.save(self._output_dir, iteration, state)))
                    folder.prune(self._output_dir, self._kept, self._milestones)
        except Exception as error:
            self._error = error
            return
        logger.info(
            "checkpoint after iteration %d: %s (held up the training for %.3f s, "
            "written in %.3f s)",
            *(iteration, " and ".join(paths), copied, time.perf_counter() - start),
        )


def snapshot(tree: Any) -> Any:
    """A copy of nested dicts, lists and tuples, with copies of their tensors on the CPU."""
    if isinstance(tree, Tensor):
        return tree.detach().to("cpu", copy=True)
    if isinstance(tree, Mapping):
        return {key: snapshot(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)([snapshot(value) for value in tree])
    return tree
