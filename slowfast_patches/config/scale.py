"""A recipe made longer or shorter, and its batch and rates for the processes that train it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from multigrid import batch_rate_factor
from slowfast_patches.config.recipe import Recipe

__all__ = ["as_overrides", "fit_batch", "scaled_lengths"]

_DIGITS = 6
"""Decimals of scaled lengths, which are epochs: a millionth is less than a clip of most sets."""


def scaled_lengths(recipe: Recipe, factor: float) -> dict[str, object]:
    """The keys that say how long a recipe trains, with their values times `factor`.

    All lengths scale together: the end, the steps and the warm-up, in epochs.

    Returns:
        Overrides for `load_recipe`, KEY to value: SOLVER.MAX_EPOCH, STEPS and WARMUP_EPOCHS, and
        SOLVER.LENGTH 1, as it is in them.
    """
    solver = recipe.solver
    return {
        "SOLVER.MAX_EPOCH": round(solver.max_epoch * factor, _DIGITS),
        "SOLVER.STEPS": [round(step * factor, _DIGITS) for step in solver.steps],
        "SOLVER.WARMUP_EPOCHS": round(solver.warmup_epochs * factor, _DIGITS),
        "SOLVER.LENGTH": 1.0,
    }


def as_overrides(keys: Mapping[str, object]) -> tuple[str, ...]:
    """KEY -> value as the KEY VALUE pairs of a command line."""
    return tuple(str(item) for pair in keys.items() for item in pair)


def fit_batch(recipe: Recipe, world_size: int) -> Recipe:
    """Scale the batch to `world_size` processes, and the learning rates to the batch.

    Processes are over all NUM_SHARDS machines. With SOLVER.REFERENCE_WORLD_SIZE each keeps as many
    clips as each of that many GPUs has of TRAIN.BATCH_SIZE. With SOLVER.REFERENCE_BATCH_SIZE, which
    is TRAIN.BATCH_SIZE as written where the batch is scaled, SOLVER.BASE_LR, WARMUP_START_LR and
    COSINE_END_LR follow the global batch by SOLVER.BATCH_RATE_RULE. Epochs stay.

    Both keys then have what they are now, so that scaling again changes nothing. `load_recipe`
    calls this for the recipe's own NUM_GPUS and NUM_SHARDS.

    Raises:
        ValueError: clips that do not divide over the GPUs, or processes over the machines.
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
                f"SOLVER.REFERENCE_WORLD_SIZE; set TRAIN.BATCH_SIZE {(clips // gpus + 1) * gpus}, "
                "or the number of GPUs that it was written for"
            )
        processes, rest = divmod(world_size, recipe.num_shards)
        if rest:
            raise ValueError(
                f"{world_size} processes do not divide over NUM_SHARDS {recipe.num_shards}; start "
                "as many on each machine"
            )
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
