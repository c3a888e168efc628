"""OUTPUT_DIR/checkpoints: which are there, which stay, and what is in one."""

from __future__ import annotations

import errno
import itertools
import logging
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from slowfast_patches.utils.files import check_archive, written_whole

__all__ = [
    "all_checkpoints",
    "best_checkpoint",
    "checkpoint_of",
    "describe_last",
    "last_checkpoint",
    "load",
    "prune",
    "save",
    "save_best",
    "set_aside",
]

logger = logging.getLogger(__name__)

_FOLDER = "checkpoints"
_BEST = "checkpoint_best.pyth"
_NAME = re.compile(r"checkpoint_iter_(\d+)\.pyth")


def save(output_dir: str | Path, iteration: int, content: Mapping[str, Any]) -> Path:
    """Write the checkpoint after `iteration` iterations, whole or, with an OSError, not at all."""
    return _save(output_dir, f"checkpoint_iter_{iteration:08d}.pyth", content)


def save_best(output_dir: str | Path, content: Mapping[str, Any]) -> Path:
    """Write the best checkpoint so far, in the place of the one before; raises as `save`."""
    return _save(output_dir, _BEST, content)


def _save(output_dir: str | Path, name: str, content: Mapping[str, Any]) -> Path:
    path = Path(output_dir) / _FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as file:
        try:
            torch.save(dict(content), file)
        except RuntimeError as error:  # torch's, about what the file has refused
            raise error.__context__ or error from None
    return path


def load(path: str | Path) -> dict[str, Any]:
    """What is in a checkpoint, on the CPU; nothing in it is executed. ValueError: no such file, not
    a checkpoint, or a damaged one; OSError: the disk cannot read it."""
    try:
        check_archive(Path(path))
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such checkpoint") from error
    except IsADirectoryError as error:
        raise ValueError(f"{path} is a folder, not a checkpoint") from error
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # of a seek, in a torn file
            raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(
            f"{path} cannot be read as a PyTorch checkpoint: it is none, or damaged ({reason:.200})"
        ) from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not a checkpoint")
    return content


def all_checkpoints(output_dir: str | Path) -> list[Path]:
    """The checkpoints of a run, the newest last."""
    paths = (Path(output_dir) / _FOLDER).glob("checkpoint_iter_*.pyth")
    return sorted((path for path in paths if _NAME.fullmatch(path.name)), key=_iteration)


def _iteration(path: Path) -> int:
    """The iterations that were done when a checkpoint was written, by its name."""
    found = _NAME.fullmatch(path.name)
    assert found is not None, path
    return int(found[1])


def last_checkpoint(output_dir: str | Path) -> Path | None:
    """The newest checkpoint of a run, if it has one."""
    return next(reversed(all_checkpoints(output_dir)), None)


def best_checkpoint(output_dir: str | Path) -> Path | None:
    """The checkpoint that TRAIN.KEEP_BEST keeps, weights alone, if a run has one."""
    path = Path(output_dir) / _FOLDER / _BEST
    return path if path.is_file() else None


def checkpoint_of(path: str | Path) -> Path:
    """What a user means by `path`: a checkpoint itself, or, of a run's folder, the best one if it
    was kept, else the last; ValueError where there is none."""
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
            except OSError as error:
                logger.warning("%s cannot be deleted: %s", path, error)


def set_aside(output_dir: str | Path) -> Path | None:
    """Rename the folder of an earlier run's checkpoints, so that they never mix with a new run's;
    the new name, or None where there was nothing to rename."""
    folder = Path(output_dir) / _FOLDER
    if last_checkpoint(output_dir) is None and best_checkpoint(output_dir) is None:
        return None
    names = (folder.with_name(f"{_FOLDER}_before_{n}") for n in itertools.count(1))
    return folder.rename(next(name for name in names if not name.exists()))
