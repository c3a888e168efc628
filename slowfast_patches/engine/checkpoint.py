"""Checkpoints: written whole or not at all, read without executing anything, and never mixed up."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from fvcore.common.config import CfgNode

__all__ = [
    "check_same_recipe",
    "find_resumable",
    "last_checkpoint",
    "load",
    "save",
    "set_aside",
]

_FOLDER = "checkpoints"

_SCALED = "SOLVER.REFERENCE_WORLD_SIZE"
"""May differ where the batch and the rates that it scales do not."""

_MAY_DIFFER = (
    "DATA.PATH_PREFIX",
    "DATA.PATH_TO_DATA_DIR",
    "DATA_LOADER",
    "DIST_BACKEND",
    "DIST_JOIN_SECONDS",
    "DIST_STALL_SECONDS",
    "LOG_MODEL_INFO",
    "LOG_PERIOD",
    "NUM_GPUS",
    "OUTPUT_DIR",
    "SHARD_ID",
    _SCALED,
    "TEST",
    "TRAIN.AUTO_RESUME",
    "TRAIN.CHECKPOINT_PERIOD",
    "TRAIN.EVAL_PERIOD",
)
"""Keys, or sections, that may change between a checkpoint and the run that continues it."""


def save(output_dir: str | Path, iteration: int, payload: Mapping[str, Any]) -> Path:
    """Write the checkpoint after `iteration` iterations: to a temporary file, then renamed."""
    folder = Path(output_dir) / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"checkpoint_iter_{iteration:08d}.pyth"
    temporary = path.with_suffix(".tmp")
    try:
        with temporary.open("wb") as file:
            torch.save(dict(payload), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def last_checkpoint(output_dir: str | Path) -> Path | None:
    """The newest checkpoint of a run, if it has one."""
    paths = sorted((Path(output_dir) / _FOLDER).glob("checkpoint_iter_*.pyth"))
    return paths[-1] if paths else None


def find_resumable(cfg: CfgNode, num_videos: int) -> tuple[Path, dict[str, Any]] | None:
    """The checkpoint that a run continues, with what is in it; None where it starts anew.

    Raises:
        ValueError: TRAIN.AUTO_RESUME finds a checkpoint that cannot be read, or that another
            recipe or another list of videos made.
    """
    path = last_checkpoint(cfg.OUTPUT_DIR)
    if path is None or not cfg.TRAIN.AUTO_RESUME:
        return None
    content = load(path)
    check_same_recipe(content, cfg, path)
    if content["num_videos"] != num_videos:
        raise ValueError(
            f"{path} was trained on {content['num_videos']} videos, the list now has "
            f"{num_videos}; use another OUTPUT_DIR, or TRAIN.AUTO_RESUME False to start over"
        )
    return path, content


def set_aside(output_dir: str | Path) -> Path | None:
    """Rename the folder of an earlier run's checkpoints, so that they never mix with a new run's.

    Returns the new name; None where there was nothing to rename.
    """
    folder = Path(output_dir) / _FOLDER
    if last_checkpoint(output_dir) is None:
        return None
    names = (folder.with_name(f"{_FOLDER}_before_{n}") for n in itertools.count(1))
    return folder.rename(next(name for name in names if not name.exists()))


def load(path: str | Path) -> dict[str, Any]:
    """What is in a checkpoint, on the CPU; nothing in it is executed.

    Raises:
        ValueError: no such file, or not a checkpoint.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such checkpoint") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(
            f"{path} cannot be read as a PyTorch checkpoint: it is none, or damaged ({reason:.200})"
        ) from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not a checkpoint")
    return content


def check_same_recipe(checkpoint: Mapping[str, Any], cfg: CfgNode, path: Path) -> None:
    """Raise ValueError if a checkpoint was made by another recipe, naming what differs."""
    if "cfg" not in checkpoint or "iteration" not in checkpoint:
        raise ValueError(
            f"{path} was not written by this trainer and cannot be continued; start from it with "
            "TRAIN.CHECKPOINT_FILE_PATH and another OUTPUT_DIR"
        )
    old, new = _flat(yaml.safe_load(checkpoint["cfg"])), _flat(yaml.safe_load(cfg.dump()))
    keys = [k for k in sorted(old.keys() | new.keys()) if not _may_differ(k)]
    differing = [k for k in keys if old.get(k) != new.get(k)]
    if differing:
        lines = [f"  {k}: {old.get(k)} there, {new.get(k)} here" for k in differing]
        if old.get(_SCALED, 0) != new.get(_SCALED, 0):
            lines.append(f"{_SCALED} scales with the GPUs: continue on as many as there")
        raise ValueError(
            f"{path} is of another recipe:\n"
            + "\n".join(lines)
            + "\nUse another OUTPUT_DIR, or TRAIN.AUTO_RESUME False to start over"
        )


def _may_differ(key: str) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in _MAY_DIFFER)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
