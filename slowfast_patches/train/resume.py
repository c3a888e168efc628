"""Find the checkpoint to resume from, and check that it fits the run."""

from __future__ import annotations

import logging
import math
import os
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from multigrid import Schedule
from slowfast_patches.config.keys import may_differ
from slowfast_patches.config.recipe import Recipe, stored_keys, values_by_key
from slowfast_patches.config.yaml_text import parse_yaml
from slowfast_patches.launch.placement import is_restart
from slowfast_patches.train.checkpoint import Checkpoint, all_checkpoints, parse, read, set_aside
from slowfast_patches.utils.files import write_text

logger = logging.getLogger(__name__)

_NOTE = "started_over.txt"
"""The job for which the run started over."""
_RATES = ("SOLVER.BASE_LR", "SOLVER.COSINE_END_LR", "SOLVER.WARMUP_START_LR")
_ELSE = "Use another OUTPUT_DIR, or TRAIN.AUTO_RESUME False to start over"


class Resumable(NamedTuple):
    """A checkpoint to resume from, and its file."""

    path: Path
    checkpoint: Checkpoint


def continues(recipe: Recipe) -> bool:
    """Return whether the run resumes from the checkpoints in OUTPUT_DIR, if there are any.

    It does unless TRAIN.AUTO_RESUME is False. A job that has started over for that reason resumes
    when it is restarted.
    """
    note = Path(recipe.output_dir, _NOTE)
    restarted = is_restart(os.environ) and note.exists() and note.read_text() == _job()
    return recipe.train.auto_resume or restarted


def start_over(recipe: Recipe) -> None:
    """Set the checkpoints in OUTPUT_DIR aside, unless the run continues them.

    This also records the job for which it was done. The main process calls it before anything else.
    """
    if continues(recipe):
        return
    if kept := set_aside(recipe.output_dir):
        logger.warning("TRAIN.AUTO_RESUME False starts over; earlier checkpoints: %s", kept)
    write_text(Path(recipe.output_dir, _NOTE), _job())


def _job() -> str:
    """Return what all attempts of a job have in common.

    SLURM's job ID comes first, because torchrun's ID may change when SLURM requeues the job.
    """
    names = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")
    return next((f"{name}={os.environ[name]}" for name in names if name in os.environ), "")


def find_resumable(recipe: Recipe) -> Resumable | None:
    """Return the newest undamaged checkpoint if the run resumes, or None if it starts anew.

    Newer checkpoints that are damaged are renamed. An unfinished run may have other learning rates
    than the checkpoint. They are added to its `rate_changes`.

    Raises:
        ValueError: all checkpoints are damaged, or the newest is of another recipe or trainer.
        OSError: the disk cannot read a checkpoint, which may be undamaged.
    """
    damaged = dict[Path, ValueError]()
    for path in reversed(all_checkpoints(recipe.output_dir)) if continues(recipe) else ():
        try:
            content = read(path)
        except ValueError as error:
            damaged[path] = error
            continue
        checkpoint = parse(content, path)
        finished = Path(recipe.output_dir, "result.json").exists()
        if rates := check_same_recipe(checkpoint.cfg, recipe, path, rates_may_differ=not finished):
            change = f"after iteration {checkpoint.iteration}: {rates}"
            logger.warning("another learning rate %s", change)
            checkpoint = replace(checkpoint, rate_changes=[*checkpoint.rate_changes, change])
        for torn, reason in damaged.items():
            aside = torn.replace(f"{torn}.damaged")
            logger.warning("%s; renamed to %s, continuing from %s", reason, aside.name, path.name)
        return Resumable(path, checkpoint)
    for path, reason in damaged.items():
        raise ValueError(
            f"no checkpoint in {path.parent} can be read, the newest because {reason}. {_ELSE}"
        )
    return None


def check_same_recipe(
    stored: str, recipe: Recipe, path: Path, *, rates_may_differ: bool = False
) -> str:
    """Check that a checkpoint was trained with this recipe.

    Args:
        stored: the recipe in the checkpoint, as YAML.
        recipe: the recipe of this run.
        path: the checkpoint.
        rates_may_differ: accept other learning rates, if nothing else differs.

    Returns:
        The learning rates that differ, in words, or "".

    Raises:
        ValueError: other keys differ. The message lists them.
    """
    # As stored: a recipe that is loaded is fitted to its own NUM_GPUS, not to the run's processes.
    old = _as_trained(stored_keys(parse_yaml(stored)))
    new = _as_trained(values_by_key(recipe))
    differing = [key for key in new if not may_differ(key) and not _equal(old[key], new[key])]
    if rates_may_differ and set(differing) <= set(_RATES):
        return ", ".join(f"{key} {new[key]:g} in place of {old[key]:g}" for key in differing)
    if differing:
        lines = [f"  {key}: {old[key]} there, {new[key]} here\n" for key in differing]
        raise ValueError(
            f"{path} is of another recipe (batch and rates are over all NUM_SHARDS machines; where "
            f"they scale with the GPUs, continue on as many as there):\n{''.join(lines)}{_ELSE}"
        )
    return ""


def check_same_list(resumable: Resumable, list_path: Path, num_videos: int, digest: str) -> None:
    """Check that a checkpoint was trained on this list of videos.

    Args:
        resumable: the checkpoint.
        list_path: the list of this run.
        num_videos: number of videos in it.
        digest: its digest.

    Raises:
        ValueError: the lists differ.
    """
    checkpoint = resumable.checkpoint
    if (checkpoint.num_videos, checkpoint.list_digest) != (num_videos, digest):
        raise ValueError(
            f"{resumable.path} was trained on another list of videos: {checkpoint.num_videos} "
            f"there, {num_videos} in {list_path} now, or other paths, labels or order. Give the "
            f"same list. {_ELSE}"
        )


def check_same_schedule(resumable: Resumable, schedule: Schedule) -> None:
    """Check that a checkpoint was trained by this schedule.

    Raises:
        ValueError: the schedules differ; the message names the first phase that does.
    """
    there = resumable.checkpoint.phases
    here = schedule.phase_lines()
    for number, (old, new) in enumerate(zip_longest(there, here, fillvalue="none"), start=1):
        if old != new:
            raise ValueError(
                f"{resumable.path} was trained by another schedule, which this version does not "
                f"reproduce. Phase {number} was {old}, and would be {new}. {_ELSE}"
            )


def _as_trained(keys: dict[str, Any]) -> dict[str, Any]:
    """Replace the batch of one machine by the global batch in a recipe's keys."""
    shards = keys.pop("NUM_SHARDS")
    return keys | {"TRAIN.BATCH_SIZE": keys["TRAIN.BATCH_SIZE"] * shards}


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other)
    return bool(one == other)
