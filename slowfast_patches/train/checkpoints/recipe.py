"""Whether a checkpoint is of the training that is to be continued."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.stored import keys_of, stored_keys

__all__ = ["check_same_list", "check_same_recipe"]

_SCALED = "SOLVER.REFERENCE_WORLD_SIZE"
_BATCH, _MACHINES = "TRAIN.BATCH_SIZE", "NUM_SHARDS"
_BY_MACHINES = "SOLVER.BASE_LR_SCALE_NUM_SHARDS"
_BY_CLIPS = "SOLVER.REFERENCE_BATCH_SIZE"
_WARMUP_START = "SOLVER.WARMUP_START_LR"
_RATES = ("SOLVER.BASE_LR", _WARMUP_START, "SOLVER.COSINE_END_LR")

_MAY_DIFFER = (
    "DATA.MAX_BAD_FRACTION",
    "DATA.MAX_FRAME_PIXELS",
    "DATA.PATH_PREFIX",
    "DATA.PATH_TO_DATA_DIR",
    "DATA_LOADER.*",
    "DIST_*",
    "LOG_MODEL_INFO",
    "LOG_PERIOD",
    "MODEL.ACT_CHECKPOINT",
    "MODEL.CHANNELS_LAST",
    "NUM_GPUS",
    "OUTPUT_DIR",
    "SHARD_ID",
    "SOLVER.ACCUMULATION_STEPS",
    "SOLVER.FUSED",
    _SCALED,
    "TEST.*",
    "TRAIN.AUTO_RESUME",
    "TRAIN.CHECKPOINTS_KEPT",
    "TRAIN.CHECKPOINT_PERIOD",
    "TRAIN.COMPILE",
    "TRAIN.CUDA_GRAPHS",
    "TRAIN.CUDNN_BENCHMARK",
    "TRAIN.DETERMINISTIC",
    "TRAIN.EVAL_PERIOD",
    "TRAIN.KEEP_BEST",
)
"""Keys that may change between a checkpoint and the run that continues it: those that change no
result by more than rounding are among them, and those that a run which stopped over unreadable
videos is told to change. The number of machines
may, as long as the global batch and the learning rates that follow from it stay."""

_ELSE = "Use another OUTPUT_DIR, or TRAIN.AUTO_RESUME False to start over"


def check_same_recipe(checkpoint: Mapping[str, Any], recipe: Recipe, path: Path) -> None:
    """Raise ValueError if a checkpoint was made by another recipe, naming what differs."""
    if "cfg" not in checkpoint or "iteration" not in checkpoint:
        raise ValueError(
            f"{path} was not written by this trainer and cannot be continued; start from it with "
            "TRAIN.CHECKPOINT_FILE_PATH and another OUTPUT_DIR"
        )
    there, here = stored_keys(yaml.safe_load(checkpoint["cfg"])), keys_of(recipe)
    old, new = _effective(there), _effective(here)
    keys = [k for k in sorted(old.keys() | new.keys()) if not _may_differ(k)]
    differing = [k for k in keys if not _equal(old.get(k), new.get(k))]
    if differing:
        lines = [f"  {k}: {old.get(k)} there, {new.get(k)} here" for k in differing]
        if max(there[_MACHINES], here[_MACHINES]) > 1:
            lines.append(f"{_BATCH} and rates are given over all {_MACHINES} machines")
        if there[_SCALED] != here[_SCALED]:
            lines.append(f"{_SCALED} scales with the GPUs: continue on as many as there")
        raise ValueError(f"{path} is of another recipe:\n" + "\n".join(lines) + f"\n{_ELSE}")


def check_same_list(
    checkpoint: Mapping[str, Any], path: Path, list_path: Path, num_videos: int, digest: str
) -> None:
    """Raise ValueError if a checkpoint was trained on another list of videos.

    Args:
        checkpoint: its "num_videos" and, from when checkpoints have it, its "list_digest".
        path: its file.
        list_path: the list now, which has `num_videos` videos and the digest `digest`.
    """
    if checkpoint["num_videos"] != num_videos:
        raise ValueError(
            f"{path} was trained on {checkpoint['num_videos']} videos, the list {list_path} now "
            f"has {num_videos}. {_ELSE}"
        )
    if checkpoint.get("list_digest", digest) != digest:
        raise ValueError(
            f"{path} was trained on another list of {num_videos} videos than {list_path} is now: "
            f"paths, labels or their order differ. Give the same list. {_ELSE}"
        )


def _effective(flat: Mapping[str, Any]) -> dict[str, Any]:
    """A config's keys, with the global batch and the learning rates that are trained with in the
    place of those from which they follow."""
    keys, machines = dict(flat), flat[_MACHINES]
    del keys[_MACHINES]
    keys[_BATCH] *= machines
    if keys.pop(_BY_MACHINES):
        keys |= {key: keys[key] * machines for key in _RATES}
    if clips := keys.pop(_BY_CLIPS):
        keys |= {key: keys[key] * keys[_BATCH] / clips for key in _RATES if key != _WARMUP_START}
    return keys


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9)
    return bool(one == other)


def _may_differ(key: str) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in _MAY_DIFFER)
