"""A recipe made longer or shorter, or fitted to another number of GPUs."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from multigrid import batch_rate_factor
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import rates_of_batch

__all__ = ["as_overrides", "scale_to_processes", "scaled_lengths"]

logger = logging.getLogger(__name__)

_DIGITS = 6
"""Decimals of scaled lengths, which are epochs: a millionth is less than a clip of most sets."""

_BATCHES = ("TRAIN.BATCH_SIZE", "TEST.BATCH_SIZE")
_RATES = ("SOLVER.BASE_LR", "SOLVER.WARMUP_START_LR", "SOLVER.COSINE_END_LR")


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


def scale_to_processes(recipe: Recipe, world_size: int) -> Recipe:
    """The recipe for `world_size` processes on NUM_SHARDS machines, where it asks for scaling.

    SOLVER.REFERENCE_WORLD_SIZE, if not 0, is the number of GPUs that share the recipe's
    TRAIN.BATCH_SIZE, on one machine, and that its learning rates were written for. Each process
    keeps as many clips as each of these GPUs has; the rates follow the global batch by
    SOLVER.BATCH_RATE_RULE, unless they follow it anyway, by SOLVER.REFERENCE_BATCH_SIZE. Epochs
    stay. What changes is logged, key by key.

    The result's REFERENCE_WORLD_SIZE is `world_size`, so that scaling it again changes nothing. On
    several machines it is 0, as its TRAIN.BATCH_SIZE is then of one machine of several.

    Raises:
        ValueError: clips that do not divide over the GPUs, processes that do not divide over the
            machines, or SOLVER.BASE_LR_SCALE_NUM_SHARDS, which scales rates too.
    """
    reference = recipe.solver.reference_world_size
    machines = recipe.num_shards
    if reference > 0:
        _check(recipe, world_size)
        if (world_size, machines) != (reference, 1):
            recipe = _fitted(recipe, world_size)
    clips = recipe.solver.reference_batch_size or recipe.train.batch_size
    batch = recipe.base_shape.batch
    _log(recipe, rates_of_batch(recipe), f"{clips} clips in a mini-batch to {batch}")
    return recipe


def _fitted(recipe: Recipe, world_size: int) -> Recipe:
    reference = recipe.solver.reference_world_size
    machines = recipe.num_shards
    clips = recipe.train.batch_size // reference
    processes = world_size // machines
    rates = () if recipe.solver.reference_batch_size else _RATES
    factor = batch_rate_factor(world_size / reference, recipe.solver.batch_rate_rule)
    scaled = {
        "TRAIN.BATCH_SIZE": clips * processes,
        "TEST.BATCH_SIZE": max(1, recipe.test.batch_size // reference) * processes,
        **{key: recipe[key] * factor for key in rates},
        "SOLVER.REFERENCE_WORLD_SIZE": world_size if machines == 1 else 0,
    }
    fitted = recipe.replaced(scaled)
    _log(
        recipe,
        fitted,
        f"{reference} GPUs (SOLVER.REFERENCE_WORLD_SIZE) to {world_size} processes on NUM_SHARDS "
        f"{machines}, {clips} clips each",
    )
    return fitted


def _log(before: Recipe, after: Recipe, what: str) -> None:
    """Say which batches and rates have changed, where any have."""
    keys = [key for key in (*_BATCHES, *_RATES) if before[key] != after[key]]
    if keys:
        lines = (f"\n  {key} {before[key]:g} → {after[key]:g}" for key in keys)
        rule = before.solver.batch_rate_rule
        logger.info("scaled from %s, by the %s rule:%s", what, rule, "".join(lines))


def _check(recipe: Recipe, world_size: int) -> None:
    reference = recipe.solver.reference_world_size
    clips = recipe.train.batch_size
    if recipe.solver.base_lr_scale_num_shards:
        raise ValueError(
            f"SOLVER.REFERENCE_WORLD_SIZE {reference} and SOLVER.BASE_LR_SCALE_NUM_SHARDS True "
            "would both scale the learning rates; set one of them to 0 or False"
        )
    if clips % reference:
        raise ValueError(
            f"TRAIN.BATCH_SIZE {clips} does not divide over the {reference} GPUs of "
            f"SOLVER.REFERENCE_WORLD_SIZE; set TRAIN.BATCH_SIZE "
            f"{(clips // reference + 1) * reference}, or the number of GPUs that it was written for"
        )
    if world_size % recipe.num_shards:
        raise ValueError(
            f"{world_size} processes do not divide over NUM_SHARDS {recipe.num_shards}; start as "
            "many on each machine"
        )
