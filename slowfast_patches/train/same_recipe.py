"""Compare the recipe of a run with the recipe that a checkpoint was trained with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slowfast_patches.config.keys import changes_scores, may_differ
from slowfast_patches.config.recipe import (
    KEYS,
    Recipe,
    differing_keys,
    stored_keys,
    values_by_key,
)
from slowfast_patches.config.yaml_text import parse_yaml
from slowfast_patches.train.checkpoint import stored_recipe

START_OVER = "To train from the start, set another OUTPUT_DIR or TRAIN.AUTO_RESUME False."
_RATES = ("SOLVER.BASE_LR", "SOLVER.COSINE_END_LR", "SOLVER.WARMUP_START_LR")


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
    differing = differing_keys(old, new, ignored=list(filter(may_differ, KEYS)))
    if rates_may_differ and set(differing) <= set(_RATES):
        return ", ".join(f"{key} {new[key]:g} in place of {old[key]:g}" for key in differing)
    if differing:
        raise ValueError(
            f"{path} was trained with another recipe:\n{_lines(differing, old, new)}Give the same "
            "values to resume. TRAIN.BATCH_SIZE is shown for all NUM_SHARDS machines together. If "
            "the batch or the learning rates scale with the number of GPUs, resume on the same "
            f"number of GPUs. {START_OVER}"
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
    ignored = [key for key in KEYS if not changes_scores(key) or key in recipe.given]
    if differing := differing_keys(old, new, ignored):
        raise ValueError(
            f"{path} was trained with other values of keys that change its scores:\n"
            f"{_lines(differing, old, new)}Use the recipe of the training, such as config.yaml in "
            "its OUTPUT_DIR. To use other values on purpose, set these keys on the command line."
        )


def _lines(keys: Sequence[str], old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    return "".join(f"  {key}: {old[key]} in the checkpoint, {new[key]} now\n" for key in keys)


def _as_trained(keys: dict[str, Any]) -> dict[str, Any]:
    """Replace TRAIN.BATCH_SIZE of one machine by the global batch size."""
    shards = keys.pop("NUM_SHARDS")
    return keys | {"TRAIN.BATCH_SIZE": keys["TRAIN.BATCH_SIZE"] * shards}
