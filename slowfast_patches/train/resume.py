"""Find the checkpoint to resume from, and check that it matches the recipe of the run."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.launch.placement import is_restart
from slowfast_patches.train.checkpoint import Checkpoint, all_checkpoints, parse, read, set_aside
from slowfast_patches.train.same_recipe import START_OVER, check_same_recipe
from slowfast_patches.utils.files import write_text

logger = logging.getLogger(__name__)

_NOTE = "started_over.txt"
"""File in OUTPUT_DIR with the ID of the last job that started over."""


class Resumable(NamedTuple):
    """A checkpoint to resume from, and the path of its file."""

    path: Path
    checkpoint: Checkpoint


def continues(recipe: Recipe) -> bool:
    """Return whether the run resumes from the checkpoints in OUTPUT_DIR, if there are any.

    With TRAIN.AUTO_RESUME False, only the first attempt of a job starts over. If SLURM or torchrun
    restarts the job, the new attempt resumes.
    """
    note = Path(recipe.output_dir, _NOTE)
    restarted = is_restart(os.environ) and note.exists() and note.read_text() == _job()
    return recipe.train.auto_resume or restarted


def start_over(recipe: Recipe) -> None:
    """Move the checkpoints in OUTPUT_DIR to another folder, unless the run resumes from them.

    Also store the ID of the job, so that a restart of the job resumes. Only the main process calls
    this, before any other function of this module.
    """
    if continues(recipe):
        return
    if kept := set_aside(recipe.output_dir):
        logger.warning(
            "TRAIN.AUTO_RESUME False: starting over. Earlier checkpoints moved to %s.", kept
        )
    write_text(Path(recipe.output_dir, _NOTE), _job())


def _job() -> str:
    """Return the ID of the job, which stays the same when the job is restarted, or "".

    Prefer SLURM's job ID, because torchrun's ID may change when SLURM requeues the job.
    """
    names = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")
    return next((f"{name}={os.environ[name]}" for name in names if name in os.environ), "")


def find_resumable(recipe: Recipe) -> Resumable | None:
    """Return the newest undamaged checkpoint, or None if the run does not resume.

    Damaged checkpoints are renamed if an older checkpoint can be read. A run without result.json
    may resume with different learning rates. In this case, a description of the change is added
    to `rate_changes` of the returned checkpoint.

    Raises:
        ValueError: All checkpoints are damaged, or the newest undamaged checkpoint was trained with
            a different recipe or written by another version of the trainer.
        OSError: The disk cannot read a checkpoint. The file itself may be undamaged.
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
            logger.warning("The learning rate changes %s.", change)
            checkpoint = replace(checkpoint, rate_changes=[*checkpoint.rate_changes, change])
        for torn, reason in damaged.items():
            aside = torn.replace(f"{torn}.damaged")
            logger.warning(
                "Renamed a damaged checkpoint to %s, continuing from %s: %s",
                *(aside.name, path.name, reason),
            )
        return Resumable(path, checkpoint)
    for path, reason in damaged.items():
        raise ValueError(
            f"No checkpoint in {path.parent} can be read. {START_OVER} Error of the newest: "
            f"{reason}"
        )
    return None


def check_same_data(resumable: Resumable, list_path: Path, facts: Mapping[str, Any]) -> None:
    """Check that a checkpoint was trained on the same list of videos and with the same schedule.

    Args:
        resumable: The checkpoint.
        list_path: The list of training videos of this run.
        facts: What the checkpoints of this run have as "num_videos", "list_digest" and "phases".

    Raises:
        ValueError: The lists differ, or the schedules do. The message names the first phase that
            differs.
    """
    path, checkpoint = resumable
    names = ("num_videos", "list_digest")
    if any(getattr(checkpoint, name) != facts[name] for name in names):
        raise ValueError(
            f"{path} was trained on another list of videos. The checkpoint has "
            f"{checkpoint.num_videos} videos, and {list_path} has {facts['num_videos']}. If the "
            "numbers are equal, then paths, labels or the order differ. Restore the list to "
            f"resume. {START_OVER}"
        )
    both = zip_longest(checkpoint.phases, facts["phases"], fillvalue="none")
    for number, (old, new) in enumerate(both, start=1):
        if old != new:
            raise ValueError(
                f"{path} was trained with another schedule. Phase {number} was {old}, and is now "
                f"{new}. Use the version of this package that wrote the checkpoint to resume. "
                f"{START_OVER}"
            )
