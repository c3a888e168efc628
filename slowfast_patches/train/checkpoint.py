"""What a checkpoint holds, and the checkpoint files of a run.

A file is complete or absent, and reading it executes nothing.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_map_only

from slowfast_patches.launch.stopping import TrainingStoppedError
from slowfast_patches.utils.files import atomic_write, check_archive

logger = logging.getLogger(__name__)

VERSION = 3
"""Of the fields of `Checkpoint`; other versions are refused."""
_FOLDER = "checkpoints"
_BEST = "checkpoint_best.pyth"


@dataclass(kw_only=True)
class Progress:
    """How far a training has come.

    Attributes:
        iteration: number of iterations that are done.
        seconds: time by activity, as `Clock` counts it, up to the last checkpoint.
        evaluations: the metrics of each validation, as in result.json.
        best: the metrics of the best validation.
        rate_changes: descriptions of resumptions with another learning rate.
        unreadable: number of unreadable videos by epoch.
    """

    iteration: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)
    rate_changes: list[str] = field(default_factory=list)
    unreadable: dict[int, int] = field(default_factory=dict)

    @property
    def last_evaluation(self) -> int:
        """Number of iterations that were done at the last validation, or 0."""
        return int(self.evaluations[-1]["iteration"]) if self.evaluations else 0


@dataclass(kw_only=True)
class Checkpoint(Progress):
    """State of a training after an iteration. The file holds a dict of these fields.

    Attributes:
        epoch: epoch of the last iteration.
        cfg: the recipe as YAML.
        cfg_at_iteration: the recipe with the shape and the learning rate of the last iteration.
        model_state: state dict of the model.
        ema_state: state dict of the averaged weights, or None.
        optimizer_state: None in the best checkpoint, which cannot be resumed.
        scaler_state: state of the gradient scaler. None in the best checkpoint.
        running_stats: BN statistics of each rank, (ranks, N), if they have not been averaged.
        world_size: number of processes.
        phases: the schedule, as `Schedule.phase_lines` describes it.
        num_videos: number of training videos.
        list_digest: digest of the list of training videos.
        class_names: names by class number, or None.
        version: format of these fields.
    """

    epoch: float
    cfg: str
    cfg_at_iteration: str
    model_state: dict[str, Tensor]
    ema_state: dict[str, Tensor] | None
    optimizer_state: dict[str, Any] | None
    scaler_state: dict[str, Any] | None
    running_stats: Tensor | None
    world_size: int
    phases: tuple[str, ...]
    num_videos: int
    list_digest: str
    class_names: tuple[str, ...] | None
    version: int = VERSION


class DivergedError(TrainingStoppedError):
    """Error raised when a loss or a tensor of the state is not finite."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}; the same command with a lower SOLVER.BASE_LR goes on from the last "
            "checkpoint, with TRAIN.AUTO_RESUME False it starts over"
        )


def all_checkpoints(output_dir: str | Path) -> list[Path]:
    """Return the checkpoints of a run, the newest last."""
    return sorted(Path(output_dir, _FOLDER).glob(f"checkpoint_iter_{'[0-9]' * 8}.pyth"))


def _iteration(path: Path) -> int:
    """Return the iteration that a checkpoint's file name gives."""
    return int(path.stem[-8:])


def last_checkpoint(output_dir: str | Path) -> Path | None:
    """Return the newest checkpoint of a run, or None."""
    return next(reversed(all_checkpoints(output_dir)), None)


def best_checkpoint(output_dir: str | Path) -> Path | None:
    """Return the checkpoint of TRAIN.KEEP_BEST, or None if the run has none."""
    path = Path(output_dir, _FOLDER, _BEST)
    return path if path.is_file() else None


def checkpoint_of(path: Path) -> Path:
    """Return the checkpoint that a path names.

    For the folder of a run this is its best checkpoint, or the last if there is no best one.

    Raises:
        ValueError: there is no checkpoint.
    """
    checkpoint = (best_checkpoint(path) or last_checkpoint(path)) if path.is_dir() else path
    if checkpoint is None or not checkpoint.exists():
        raise ValueError(f"there is no checkpoint {path}; give a file, or a run's OUTPUT_DIR")
    return checkpoint


def describe_last(output_dir: str | Path) -> str:
    """Describe the last checkpoint of a run, as a clause of a message."""
    path = last_checkpoint(output_dir)
    if path is None:
        return "there is no checkpoint yet"
    return f"the last checkpoint is {path}, after iteration {_iteration(path)}"


def prune(output_dir: str | Path, kept: int, milestones: Collection[int]) -> None:
    """Delete old checkpoints.

    Args:
        output_dir: the run's folder.
        kept: number of last checkpoints to keep. 0 keeps all.
        milestones: iterations whose checkpoints are always kept.
    """
    for path in all_checkpoints(output_dir)[:-kept] if kept else ():
        if _iteration(path) not in milestones:
            path.unlink(missing_ok=True)


def set_aside(output_dir: str | Path) -> Path | None:
    """Rename the folder of an earlier run's checkpoints.

    This keeps them apart from the checkpoints of a new run.

    Returns:
        The new name, or None if there were no checkpoints.
    """
    folder = Path(output_dir, _FOLDER)
    if not any(folder.glob("*.pyth")):
        return None
    names = (folder.with_name(f"{_FOLDER}_before_{n}") for n in itertools.count(1))
    return folder.rename(next(name for name in names if not name.exists()))


def load(path: Path) -> Checkpoint:
    """Read a checkpoint to the CPU. Raises as `read` and `parse`."""
    return parse(read(path), path)


def read(path: Path) -> Any:
    """Read a PyTorch file to the CPU without executing anything in it.

    Raises:
        ValueError: the file is damaged or of another kind.
        OSError: the disk cannot read it.
    """
    check_archive(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(
            f"{path} cannot be read as a PyTorch checkpoint: it is damaged or of another kind "
            f"({reason:.200})"
        ) from error


def parse(content: Any, path: Path) -> Checkpoint:
    """Convert the content of a file to a checkpoint.

    Raises:
        ValueError: it is not a checkpoint of this version.
    """
    if not isinstance(content, dict) or content.get("version") != VERSION:
        raise ValueError(
            f"{path} was not written by this version of the trainer and cannot be continued; start "
            "from it with TRAIN.CHECKPOINT_FILE_PATH and another OUTPUT_DIR"
        )
    try:
        return Checkpoint(**content)
    except TypeError as error:
        raise ValueError(f"{path} is not a valid checkpoint: {error}") from error


def save(output_dir: str | Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint atomically.

    Its file name has the iteration. A checkpoint without an optimizer is the best one.

    Raises:
        OSError: the file cannot be written. The one before it stays.
    """
    best = checkpoint.optimizer_state is None
    name = _BEST if best else f"checkpoint_iter_{checkpoint.iteration:08d}.pyth"
    path = Path(output_dir, _FOLDER, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        try:
            torch.save(to_cpu(vars(checkpoint)), file)
        except RuntimeError as error:  # torch's, where writing to the file failed
            raise error.__context__ or error from None
    return path


@contextmanager
def explain_write_errors(what: str, output_dir: str | Path, when: str = "") -> Iterator[None]:
    """Convert OSError in the body to TrainingStoppedError.

    Args:
        what: which file the body writes.
        output_dir: the run's folder.
        when: for the message, such as " after iteration 7".
    """
    try:
        yield
    except OSError as error:
        raise TrainingStoppedError(
            f"{what} cannot be written{when}: {error.strerror or error}; "
            f"{describe_last(output_dir)}. Make room in {output_dir}, or make it writable, "
            "and give the same command again"
        ) from error


def write_checkpoint(
    output_dir: str | Path, checkpoint: Checkpoint, kept: int, milestones: Collection[int]
) -> None:
    """Write a checkpoint and delete old ones, as `prune` does.

    Raises:
        DivergedError: a tensor is not finite. Nothing is written.
        TrainingStoppedError: the files cannot be written.
    """
    start = time.perf_counter()
    _check_finite(checkpoint)
    with explain_write_errors(
        "the checkpoint", output_dir, f" after iteration {checkpoint.iteration}"
    ):
        path = save(output_dir, checkpoint)
        prune(output_dir, kept, milestones)
    logger.info("checkpoint %s (written in %.3f s)", path, time.perf_counter() - start)


def to_cpu(tree: Any) -> Any:
    """Copy nested dicts, lists and tuples, with their tensors on the CPU."""
    return tree_map_only(Tensor, lambda tensor: tensor.detach().cpu(), tree)


def _check_finite(checkpoint: Checkpoint) -> None:
    """Raise DivergedError if a tensor of a checkpoint has NaN or infinite values."""
    leaves, _ = tree_flatten_with_path(vars(checkpoint))
    names = [
        keystr(path)
        for path, value in leaves
        if isinstance(value, Tensor) and not value.isfinite().all()
    ]
    if names:
        raise DivergedError(
            f"after iteration {checkpoint.iteration} the training has {len(names)} tensors with "
            f"NaN or infinite values, such as {names[0]}; no checkpoint is written of them"
        )
