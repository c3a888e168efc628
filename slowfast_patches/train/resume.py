"""Find the checkpoint to resume from, and compare recipes with those in checkpoints."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from slowfast_patches.config.key_lists import changes_scores, may_differ
from slowfast_patches.config.recipe import (
    COMMAND_LINE,
    KEYS,
    Recipe,
    differences,
    stored_keys,
    values_by_key,
)
from slowfast_patches.config.yaml_text import parse_yaml
from slowfast_patches.train.checkpoint import (
    Checkpoint,
    DamagedError,
    all_checkpoints,
    load,
    set_aside,
    stored_recipe,
)
from slowfast_patches.utils.errors import UserError

logger = logging.getLogger(__name__)

_START_OVER = "To train from the start, set another OUTPUT_DIR or TRAIN.AUTO_RESUME False."
_RATES = ("SOLVER.BASE_LR", "SOLVER.COSINE_END_LR", "SOLVER.WARMUP_START_LR")


class Resumable(NamedTuple):
    """A checkpoint to resume from, and the path of its file."""

    path: Path
    checkpoint: Checkpoint


def continues(recipe: Recipe) -> bool:
    """Return whether the run resumes from the checkpoints in OUTPUT_DIR, if there are any.

    With TRAIN.AUTO_RESUME False, only the first attempt of a job starts over. If SLURM or torchrun
    restarts the job, the new attempt resumes.
    """
    counts = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    restarted = any(os.environ.get(name, "0") not in ("", "0") for name in counts)
    return recipe.train.auto_resume or restarted


def find_resumable(recipe: Recipe) -> Resumable | None:
    """Return the newest undamaged checkpoint, or None if the run does not resume.

    If the run starts over, the checkpoints in OUTPUT_DIR are moved to another folder. Damaged
    checkpoints are renamed if an older checkpoint can be read. A run without result.json may resume
    with different learning rates. In this case, a description of the change is added to
    `rate_changes` of the returned checkpoint.

    Raises:
        ValueError: All checkpoints are damaged, or the newest undamaged checkpoint was trained with
            a different recipe or written by another version of the trainer.
        OSError: The disk cannot read a checkpoint. The file itself may be undamaged.
    """
    if not continues(recipe) and (kept := set_aside(recipe.output_dir)):
        logger.warning(
            "TRAIN.AUTO_RESUME False: starting over. Earlier checkpoints moved to %s.", kept
        )
    damaged = dict[Path, DamagedError]()
    for path in reversed(all_checkpoints(recipe.output_dir)):
        try:
            checkpoint = load(path)
            break
        except DamagedError as error:
            damaged[path] = error
    else:
        for path, reason in damaged.items():
            raise UserError(
                f"No checkpoint in {path.parent} can be read. {_START_OVER} Error of the newest: "
                f"{reason}"
            )
        return None
    finished = Path(recipe.output_dir, "result.json").exists()
    if rates := check_same_recipe(checkpoint.cfg, recipe, path, rates_may_differ=not finished):
        change = f"after iteration {checkpoint.iteration}: {rates}"
        logger.warning("The learning rate changes %s.", change)
        checkpoint = replace(checkpoint, rate_changes=[*checkpoint.rate_changes, change])
    for torn, reason in damaged.items():
        torn.replace(f"{torn}.damaged")
        logger.warning("Renamed a damaged checkpoint, continuing from %s: %s", path.name, reason)
    return Resumable(path, checkpoint)


def check_same_data(resumable: Resumable, list_path: Path, facts: Mapping[str, Any]) -> None:
    """Check that a checkpoint was trained on the same list of videos and with the same schedule.

    Args:
        resumable: The checkpoint.
        list_path: The list of training videos of this run.
        facts: "num_videos", "list_digest" and "phases" in the checkpoints of this run.

    Raises:
        ValueError: The lists or the schedules differ.
    """
    path, checkpoint = resumable
    if checkpoint.list_digest != facts["list_digest"]:
        raise UserError(
            f"{path} was trained on another list of videos. The checkpoint has "
            f"{checkpoint.num_videos} videos, and {list_path} has {facts['num_videos']}. If the "
            "numbers are equal, then paths, labels or the order differ. Restore the list to "
            f"resume. {_START_OVER}"
        )
    if checkpoint.phases != facts["phases"]:
        raise UserError(
            f"{path} was trained with another schedule. To resume, use the version of this package "
            f"that wrote the checkpoint. {_START_OVER}"
        )


def check_same_recipe(
    stored: str, recipe: Recipe, path: Path, *, rates_may_differ: bool = False
) -> str:
    """Check that a run with this recipe may resume from a checkpoint.

    Args:
        stored: The recipe in the checkpoint, as YAML.
        recipe: The recipe of this run.
        path: The checkpoint, for error messages.
        rates_may_differ: Accept different learning rates if all other keys are equal.

    Returns:
        A description of the learning rates that differ, or "" if all are equal.

    Raises:
        ValueError: A key differs that must not differ. The message lists the keys.
    """
    # Do not load `stored` as a recipe: loading would scale the batch and the learning rates to
    # NUM_GPUS.
    old = _as_trained(stored_keys(parse_yaml(stored)))
    new = _as_trained(values_by_key(recipe))
    differing = differences(old, new, ignored=list(filter(may_differ, KEYS)))
    if rates_may_differ and differing.keys() <= {*_RATES}:
        return ", ".join(f"{key} {new[key]:g} in place of {old[key]:g}" for key in differing)
    if differing:
        raise UserError(
            f"{path} was trained with another recipe: {'; '.join(differing.values())}. Give the "
            "same values to resume. TRAIN.BATCH_SIZE is shown for all NUM_SHARDS machines "
            "together. If the batch or the learning rates scale with the number of GPUs, resume on "
            f"the same number of GPUs. {_START_OVER}"
        )
    return ""


def check_same_scores(recipe: Recipe, path: Path) -> None:
    """Check that a recipe scores videos in the same way as the recipe in a checkpoint.

    Keys that the command line sets may differ, because the user has chosen their values. Files
    without a recipe are not checked.

    Args:
        recipe: The recipe of the test or the prediction.
        path: The file with the weights.

    Raises:
        ValueError: Another key differs that changes the scores. The message lists the keys.
    """
    stored = stored_recipe(path)
    if stored is None:
        return
    old = stored_keys(parse_yaml(stored))
    new = values_by_key(recipe)
    chosen = [key for key, source in recipe.given.items() if source == COMMAND_LINE]
    ignored = [key for key in KEYS if not changes_scores(key) or key in chosen]
    if differing := differences(old, new, ignored):
        raise UserError(
            f"{path} was trained with other values of keys that change its scores: "
            f"{'; '.join(differing.values())}. Use the recipe of the training, such as "
            "config.yaml in its OUTPUT_DIR. To use other values on purpose, set these keys on the "
            "command line."
        )


def _as_trained(keys: dict[str, Any]) -> dict[str, Any]:
    """Return the keys with TRAIN.BATCH_SIZE as the global batch size, and without NUM_SHARDS."""
    shards = keys.pop("NUM_SHARDS")
    return keys | {"TRAIN.BATCH_SIZE": keys["TRAIN.BATCH_SIZE"] * shards}
