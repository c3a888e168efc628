"""From which checkpoint a run goes on, if from any."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from slowfast_patches.config.keys import may_differ
from slowfast_patches.config.recipe import Recipe, keys_of, stored_keys
from slowfast_patches.launch.placement import is_restart
from slowfast_patches.train.checkpoints.folder import all_checkpoints, load, set_aside
from slowfast_patches.utils.files import written_whole

__all__ = [
    "Found",
    "check_same_list",
    "check_same_recipe",
    "continues",
    "find_resumable",
    "start_over",
]

logger = logging.getLogger(__name__)

_NOTE = "started_over.json"
"""For which job the run started over."""
_JOBS = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")
"""What names a job: the same in all its attempts."""

_MACHINES, _BATCH, _SCALED = "NUM_SHARDS", "TRAIN.BATCH_SIZE", "SOLVER.REFERENCE_WORLD_SIZE"
_ELSE = "Use another OUTPUT_DIR, or TRAIN.AUTO_RESUME False to start over"


class Found(NamedTuple):
    """The checkpoint that a run continues, and what is in it."""

    path: Path
    content: dict[str, Any]


def continues(recipe: Recipe) -> bool:
    """Whether a run goes on from the checkpoints in OUTPUT_DIR, if there are any: by default, and
    where the job is restarted after it has started over as TRAIN.AUTO_RESUME False asks."""
    if recipe.train.auto_resume:
        return True
    return is_restart(os.environ) and _has_started_over(Path(recipe.output_dir))


def start_over(recipe: Recipe) -> None:
    """Set the checkpoints in OUTPUT_DIR aside, unless the run continues them; a note says for which
    job that was done. For the main process, before anything else."""
    if continues(recipe):
        return
    folder = Path(recipe.output_dir)
    if kept := set_aside(folder):
        logger.warning("TRAIN.AUTO_RESUME False starts over; earlier checkpoints: %s", kept)
    with written_whole(folder / _NOTE) as file:
        file.write(json.dumps(_job()).encode())


def _job() -> dict[str, str]:
    return {name: os.environ[name] for name in _JOBS if name in os.environ}


def _has_started_over(folder: Path) -> bool:
    """Whether an attempt of this job has. torchrun may give each attempt of a SLURM job an id."""
    try:
        noted = json.loads((folder / _NOTE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    return any(noted.get(name) == value for name, value in _job().items())


def find_resumable(recipe: Recipe) -> Found | None:
    """The newest checkpoint that is whole, if the run continues; None where it starts anew. Damaged
    ones that are newer are renamed.

    Raises:
        ValueError: all are damaged, the disk cannot read one, or another recipe made them.
    """
    if not continues(recipe):
        return None
    damaged = dict[Path, ValueError]()
    for path in reversed(all_checkpoints(recipe.output_dir)):
        try:
            content = load(path)
        except ValueError as error:
            damaged[path] = error
            continue
        except OSError as error:
            raise ValueError(
                f"{path} cannot be read: {error.strerror or error}; make it readable, or remove it "
                "to continue from the one before"
            ) from error
        check_same_recipe(content, recipe, path)
        for torn, reason in damaged.items():
            aside = torn.replace(torn.with_name(f"{torn.name}.damaged"))
            logger.warning("%s; renamed to %s, continuing from %s", reason, aside.name, path.name)
        return Found(path, content)
    if damaged:
        newest = next(iter(damaged))
        raise ValueError(
            f"no checkpoint in {newest.parent} can be read, the newest because {damaged[newest]}; "
            "put back a whole one, use another OUTPUT_DIR, or TRAIN.AUTO_RESUME False to start over"
        )
    return None


def check_same_recipe(checkpoint: Mapping[str, Any], recipe: Recipe, path: Path) -> None:
    """Raise ValueError if a checkpoint was made by another recipe, naming what differs."""
    if "cfg" not in checkpoint or "iteration" not in checkpoint:
        raise ValueError(
            f"{path} was not written by this trainer and cannot be continued; start from it with "
            "TRAIN.CHECKPOINT_FILE_PATH and another OUTPUT_DIR"
        )
    there, here = stored_keys(yaml.safe_load(checkpoint["cfg"])), keys_of(recipe)
    old, new = _as_trained(there), _as_trained(here)
    keys = [k for k in sorted(old.keys() | new.keys()) if not may_differ(k)]
    differing = [k for k in keys if not _equal(old.get(k), new.get(k))]
    if differing:
        lines = [f"  {k}: {old.get(k)} there, {new.get(k)} here" for k in differing]
        if max(there[_MACHINES], here[_MACHINES]) > 1:
            lines.append(f"{_BATCH} and rates are given over all {_MACHINES} machines")
        if there[_SCALED] != here[_SCALED]:
            lines.append(f"{_SCALED} scales with the GPUs: continue on as many as there")
        raise ValueError(f"{path} is of another recipe:\n" + "\n".join(lines) + f"\n{_ELSE}")


def check_same_list(found: Found, list_path: Path, num_videos: int, digest: str) -> None:
    """Raise ValueError if a checkpoint was trained on another list than the one that has
    `num_videos` videos and the digest `digest` now; old checkpoints have no digest."""
    there = found.content["num_videos"]
    if there != num_videos or found.content.get("list_digest", digest) != digest:
        raise ValueError(
            f"{found.path} was trained on another list of videos: {there} there, {num_videos} in "
            f"{list_path} now, or other paths, labels or order. Give the same list. {_ELSE}"
        )


def _as_trained(flat: Mapping[str, Any]) -> dict[str, Any]:
    """A config's keys, with the global batch and the learning rates that are trained with in the
    place of those from which they follow."""
    keys, machines = dict(flat), flat[_MACHINES]
    scaled = ("SOLVER.BASE_LR", "SOLVER.COSINE_END_LR")
    del keys[_MACHINES]
    keys[_BATCH] *= machines
    if keys.pop("SOLVER.BASE_LR_SCALE_NUM_SHARDS"):
        keys |= {key: keys[key] * machines for key in (*scaled, "SOLVER.WARMUP_START_LR")}
    if clips := keys.pop("SOLVER.REFERENCE_BATCH_SIZE"):
        keys |= {key: keys[key] * keys[_BATCH] / clips for key in scaled}
    return keys


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9)
    return bool(one == other)
