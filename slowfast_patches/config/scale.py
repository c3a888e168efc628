"""Scaling of a recipe: its length, and its batch size and learning rates to the processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from multigrid import batch_rate_factor
from slowfast_patches.config.recipe import Recipe

_DIGITS = 6
"""Decimals of scaled epochs. A millionth of most data sets is less than one clip."""


def scaled_lengths(recipe: Recipe, factor: float) -> dict[str, object]:
    """Multiply all lengths of a recipe by a factor.

    Returns:
        Values by full key: the scaled SOLVER.MAX_EPOCH, STEPS and WARMUP_EPOCHS, and
        SOLVER.LENGTH 1, so that they are not scaled again.
    """
    solver = recipe.solver
    return {
        "SOLVER.MAX_EPOCH": round(solver.max_epoch * factor, _DIGITS),
        "SOLVER.STEPS": [round(step * factor, _DIGITS) for step in solver.steps],
        "SOLVER.WARMUP_EPOCHS": round(solver.warmup_epochs * factor, _DIGITS),
        "SOLVER.LENGTH": 1.0,
    }


def as_overrides(keys: Mapping[str, object]) -> tuple[str, ...]:
    """Return values by full key as the KEY VALUE pairs of a command line."""
    return tuple(str(item) for pair in keys.items() for item in pair)


def scale_to_world_size(recipe: Recipe) -> Recipe:
    """Scale the batch size to the world size, and the learning rates to the batch size.

    With SOLVER.REFERENCE_WORLD_SIZE, each process has TRAIN.BATCH_SIZE / REFERENCE_WORLD_SIZE
    clips. With SOLVER.REFERENCE_BATCH_SIZE, the learning rates are scaled from that batch size to
    the global one by SOLVER.BATCH_RATE_RULE. Without it, the reference of a scaled batch size is
    TRAIN.BATCH_SIZE as written. The number of epochs stays the same.

    The result has its own sizes in both keys, so that scaling it again changes nothing.
    `load_recipe` calls this function for the recipe's own NUM_GPUS, and `resolve` for a launcher's
    processes.

    Raises:
        ValueError: The clips do not divide over the GPUs.
    """
    solver = recipe.solver
    gpus = solver.reference_world_size
    clips = recipe.train.batch_size
    written_for = solver.reference_batch_size or (clips if gpus else 0)
    values: dict[str, Any] = {}
    if gpus:
        if clips % gpus:
            raise ValueError(
                f"TRAIN.BATCH_SIZE {clips} does not divide over the {gpus} GPUs of "
                f"SOLVER.REFERENCE_WORLD_SIZE. Set TRAIN.BATCH_SIZE {(clips // gpus + 1) * gpus}, "
                "or REFERENCE_WORLD_SIZE to the number of GPUs for which it was written."
            )
        processes = recipe.world_size // recipe.num_shards
        clips = clips // gpus * processes
        values["TRAIN.BATCH_SIZE"] = clips
        values["TEST.BATCH_SIZE"] = max(1, recipe.test.batch_size // gpus) * processes
        values["SOLVER.REFERENCE_WORLD_SIZE"] = processes
    if written_for:
        batch = clips * recipe.num_shards
        factor = batch_rate_factor(batch / written_for, solver.batch_rate_rule)
        for rate in ("SOLVER.BASE_LR", "SOLVER.WARMUP_START_LR", "SOLVER.COSINE_END_LR"):
            values[rate] = recipe[rate] * factor
        values["SOLVER.REFERENCE_BATCH_SIZE"] = batch
    return recipe.replaced(values)
