"""Checkpoints: what is in them, and files that are complete or absent and execute nothing."""

from __future__ import annotations

import errno
import itertools
import logging
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from slowfast_patches.launch.stopping import TrainingStoppedError
from slowfast_patches.utils.files import check_archive, written_whole

__all__ = [
    "Checkpoint",
    "DivergedError",
    "Writer",
    "all_checkpoints",
    "best_checkpoint",
    "checkpoint_of",
    "describe_last",
    "last_checkpoint",
    "load",
    "parse",
    "prune",
    "read",
    "save",
    "set_aside",
    "snapshot",
    "writes",
]

logger = logging.getLogger(__name__)

VERSION = 1
"""Of the fields of `Checkpoint`; other versions are refused."""
_FOLDER = "checkpoints"
_BEST = "checkpoint_best.pyth"


@dataclass(frozen=True)
class Checkpoint:
    """The state of a training after an iteration. In the file it is a dict of these fields.

    iteration, epoch: iterations that are done, and the epoch of the last.
    cfg, cfg_at_iteration: the recipe as YAML, and the same with the shape and rate that held.
    model_state, ema_state: of the model and of the average of its weights, if there is one.
    optimizer_state, scaler_state: None in the best checkpoint, which no training continues from.
    running_stats: BN statistics of each rank, (ranks, N), where they have not been averaged.
    num_videos, list_digest: of the list of training videos.
    class_names: by class number, if the data set has names.
    seconds: of each activity of `Clock`.
    evaluations, best: the metrics of each validation, and of the best one, as in result.json.
    rate_changes: where the run was resumed with another learning rate, in words.
    evaluation_due: whether the validation after this iteration has still to be done.
    unreadable: numbers of unreadable videos by epoch.
    """

    iteration: int
    epoch: float
    cfg: str
    cfg_at_iteration: str
    model_state: dict[str, Tensor]
    ema_state: dict[str, Tensor] | None
    optimizer_state: dict[str, Any] | None
    scaler_state: dict[str, Any] | None
    running_stats: Tensor | None
    world_size: int
    num_videos: int
    list_digest: str
    class_names: tuple[str, ...] | None
    seconds: dict[str, float]
    evaluations: list[dict[str, Any]]
    best: dict[str, Any]
    rate_changes: list[str]
    evaluation_due: bool
    unreadable: dict[int, int]
    version: int = VERSION


class DivergedError(TrainingStoppedError):
    """A loss, or a tensor that a checkpoint would have, is not finite."""


# Files of a run.


def all_checkpoints(output_dir: str | Path) -> list[Path]:
    """The checkpoints of a run, the newest last."""
    return sorted(Path(output_dir, _FOLDER).glob(f"checkpoint_iter_{'[0-9]' * 8}.pyth"))


def _iteration(path: Path) -> int:
    """The iterations that were done when a checkpoint was written, by its name."""
    return int(path.stem.rpartition("_")[2])


def last_checkpoint(output_dir: str | Path) -> Path | None:
    """The newest checkpoint of a run, if it has one."""
    return next(reversed(all_checkpoints(output_dir)), None)


def best_checkpoint(output_dir: str | Path) -> Path | None:
    """The checkpoint that TRAIN.KEEP_BEST keeps, weights alone, if a run has one."""
    path = Path(output_dir, _FOLDER, _BEST)
    return path if path.is_file() else None


def checkpoint_of(path: str | Path) -> Path:
    """What a user means by `path`: a checkpoint itself, or, of a run's folder, the best one if it
    was kept, else the last; ValueError where there is none."""
    if not Path(path).exists():
        raise ValueError(f"there is no checkpoint {path}; give a file, or a run's OUTPUT_DIR")
    if not Path(path).is_dir():
        return Path(path)
    found = best_checkpoint(path) or last_checkpoint(path)
    if found is None:
        raise ValueError(f"{path} is a folder without checkpoints; give a run's OUTPUT_DIR")
    return found


def describe_last(output_dir: str | Path) -> str:
    """Where a run that stops can go on from, in words."""
    path = last_checkpoint(output_dir)
    if path is None:
        return "there is no checkpoint yet"
    return f"the last checkpoint is {path}, after iteration {_iteration(path)}"


def prune(output_dir: str | Path, kept: int, milestones: Collection[int]) -> None:
    """Delete all checkpoints but the last `kept` (0: all) and those after the iterations
    `milestones`."""
    for path in all_checkpoints(output_dir)[:-kept] if kept else ():
        if _iteration(path) not in milestones:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:  # no reason to end a training
                logger.warning("%s cannot be deleted: %s", path, error)


def set_aside(output_dir: str | Path) -> Path | None:
    """Rename the folder of an earlier run's checkpoints, so that they never mix with a new run's;
    the new name, or None where there was nothing to rename."""
    folder = Path(output_dir, _FOLDER)
    if last_checkpoint(output_dir) is None and best_checkpoint(output_dir) is None:
        return None
    names = (folder.with_name(f"{_FOLDER}_before_{n}") for n in itertools.count(1))
    return folder.rename(next(name for name in names if not name.exists()))


# Reading and writing.


def load(path: str | Path) -> Checkpoint:
    """Read a checkpoint to the CPU; nothing in it is executed. Raises as `read` and `parse`."""
    return parse(read(path), path)


def read(path: str | Path) -> Any:
    """Read a file of torch's; ValueError: it is damaged or of another kind, OSError: the disk
    cannot read it."""
    check_archive(Path(path))
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # of a seek, in a torn file
            raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(
            f"{path} cannot be read as a PyTorch checkpoint: it is damaged or of another kind "
            f"({reason:.200})"
        ) from error


def parse(content: Any, path: str | Path) -> Checkpoint:
    """The checkpoint that `content`, read from `path`, is; ValueError if it is invalid."""
    version = content.get("version") if isinstance(content, dict) else None
    if version is None:
        raise ValueError(
            f"{path} was not written by this trainer and cannot be continued; start from it with "
            "TRAIN.CHECKPOINT_FILE_PATH and another OUTPUT_DIR"
        )
    if version != VERSION:
        raise ValueError(f"{path} has version {version!r:.20}; this trainer reads {VERSION}")
    hints = get_type_hints(Checkpoint)
    names = {field.name for field in fields(Checkpoint)}
    invalid = [n for n in sorted(names) if not isinstance(content.get(n), _kinds(hints[n]))]
    if invalid or content.keys() != names:
        raise ValueError(f"{path} is not a valid checkpoint: {', '.join(invalid) or 'more fields'}")
    return Checkpoint(**content)


def _kinds(hint: Any) -> tuple[type, ...]:
    """The classes of a type hint: (dict, NoneType) of `dict[str, int] | None`."""
    options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return tuple(get_origin(option) or option for option in options)


def save(output_dir: str | Path, checkpoint: Checkpoint, *, best: bool = False) -> Path:
    """Write a checkpoint, the best or that of its iteration, completely or, with an OSError, not
    at all."""
    name = _BEST if best else f"checkpoint_iter_{checkpoint.iteration:08d}.pyth"
    path = Path(output_dir, _FOLDER, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as file:
        try:
            torch.save(vars(checkpoint), file)
        except RuntimeError as error:  # torch's, about what the file has refused
            raise error.__context__ or error from None
    return path


@contextmanager
def writes(what: str, output_dir: str | Path, when: str = "") -> Iterator[None]:
    """The body writes one of a run's files; TrainingStoppedError where it cannot."""
    try:
        yield
    except OSError as error:
        raise TrainingStoppedError(
            f"{what} cannot be written{when}: {error.strerror or error}; "
            f"{describe_last(output_dir)}. Make room in {output_dir}, or make it writable, "
            "and give the same command again"
        ) from error


class Writer:
    """Writes checkpoints in a thread, one at a time: the training waits for the copy of its state,
    not for the disk. `kept` and `milestones` are those of `prune`."""

    def __init__(self, output_dir: str | Path, kept: int, milestones: Collection[int]) -> None:
        self._output_dir = output_dir
        self._kept = kept
        self._milestones = milestones
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None

    def save(self, last: Checkpoint | None, best: Checkpoint | None = None) -> None:
        """Begin to write the checkpoint of an iteration, the best one, or both; their tensors may
        change from then on. Raises as `check`."""
        start = time.perf_counter()
        self.wait()
        last = last and Checkpoint(**snapshot(vars(last)))
        best = best and Checkpoint(**snapshot(vars(best)))
        copied = time.perf_counter() - start
        self._writing = self._thread.submit(self._write, last, best, copied)

    def check(self) -> None:
        """Raise the thread's error, if it has one: TrainingStoppedError."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Return once nothing is being written; raises as `check`."""
        writing = self._writing
        self._writing = None
        if writing is not None:
            writing.result()

    def _write(self, last: Checkpoint | None, best: Checkpoint | None, copied: float) -> None:
        start = time.perf_counter()
        given = [checkpoint for checkpoint in (best, last) if checkpoint is not None]
        for checkpoint in given:
            _check_finite(checkpoint)
        for checkpoint in given:
            when = f" after iteration {checkpoint.iteration}"
            with writes("the checkpoint", self._output_dir, when):
                path = save(self._output_dir, checkpoint, best=checkpoint is best)
            written = time.perf_counter() - start
            text = "checkpoint %s (held up the training for %.3f s, written in %.3f s)"
            logger.info(text, path, copied, written)
        if last is not None:
            prune(self._output_dir, self._kept, self._milestones)


def snapshot(tree: Any) -> Any:
    """A copy of nested dicts, lists and tuples, with copies of their tensors on the CPU."""
    if isinstance(tree, Tensor):
        return tree.detach().to("cpu", copy=True)
    if isinstance(tree, Mapping):
        return {key: snapshot(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)([snapshot(value) for value in tree])
    return tree


def _check_finite(checkpoint: Checkpoint) -> None:
    if names := list(_not_finite(vars(checkpoint))):
        raise DivergedError(
            f"after iteration {checkpoint.iteration} the training has {len(names)} tensors with "
            f"NaN or infinite values, such as {names[0]}; no checkpoint is written of them"
        )


def _not_finite(tree: Any, name: str = "") -> Iterator[str]:
    """The names of tensors with a NaN or an infinity in nested dicts, lists and tuples."""
    if isinstance(tree, Tensor):
        if not tree.isfinite().all():
            yield name
    elif isinstance(tree, (Mapping, list, tuple)):
        for key, value in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
            yield from _not_finite(value, f"{name}.{key}" if name else str(key))
