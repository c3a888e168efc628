"""Scaling of a recipe: the number of epochs, the batch size and the learning rates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from multigrid import batch_rate_factor
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.recipe_stages import scaled_rows
from slowfast_patches.utils.errors import UserError

_DIGITS = 6
"""Decimal places of scaled epochs. For most data sets, a millionth of an epoch is below one clip.
"""


def scale_epochs(recipe: Recipe) -> Recipe:
    """Multiply all numbers of epochs in a recipe by SOLVER.LENGTH.

    These are SOLVER.MAX_EPOCH, STEPS and WARMUP_EPOCHS, and the ends of the rows of
    MULTIGRID.STAGES. In the returned recipe, SOLVER.LENGTH is 1, so that scaling the recipe again
    changes nothing. This is the only way to train a recipe for a shorter or longer time:
    `with_length` in experiments/variants.py sets the key.
    """
    solver, length = recipe.solver, recipe.solver.length
    if length == 1:
        return recipe
    stages = scaled_rows(recipe.multigrid.stages, epochs=length)
    return recipe.replaced(
        {
            **({"MULTIGRID.STAGES": stages} if stages else {}),
            "SOLVER.MAX_EPOCH": round(solver.max_epoch * length, _DIGITS),
            "SOLVER.STEPS": [round(step * length, _DIGITS) for step in solver.steps],
            "SOLVER.WARMUP_EPOCHS": round(solver.warmup_epochs * length, _DIGITS),
            "SOLVER.LENGTH": 1.0,
        }
    )


def as_overrides(keys: Mapping[str, object]) -> tuple[str, ...]:
    """Convert values by full key to command-line words: a key, its value, the next key, ..."""
    return tuple(str(item) for pair in keys.items() for item in pair)


def scale_to_world_size(recipe: Recipe) -> Recipe:
    """Scale the batch size to the world size, and the learning rates to the batch size.

    If SOLVER.REFERENCE_WORLD_SIZE is set, each process has TRAIN.BATCH_SIZE / REFERENCE_WORLD_SIZE
    clips. SOLVER.BATCH_RATE_RULE scales the learning rates from the reference batch size to the new
    global batch size. The reference batch size is SOLVER.REFERENCE_BATCH_SIZE, or the unscaled
    TRAIN.BATCH_SIZE if only REFERENCE_WORLD_SIZE is set. If neither key is set, nothing changes.
    The number of epochs always stays the same.

    In the returned recipe, each reference key that was set has the new size, so that scaling the
    recipe again changes nothing. `load_recipe` calls this function for NUM_GPUS processes, and
    `resolve` calls it for the processes of a launcher.

    Raises:
        ValueError: TRAIN.BATCH_SIZE is not divisible by SOLVER.REFERENCE_WORLD_SIZE.
    """
    solver = recipe.solver
    gpus = solver.reference_world_size
    growth = 1.0
    clips = recipe.train.batch_size
    written_for = solver.reference_batch_size or (clips if gpus else 0)
    values: dict[str, Any] = {}
    if gpus:
        if clips % gpus:
            raise UserError(
                f"TRAIN.BATCH_SIZE {clips} is not divisible by SOLVER.REFERENCE_WORLD_SIZE {gpus}. "
                f"Set TRAIN.BATCH_SIZE {(clips // gpus + 1) * gpus}, or set "
                "SOLVER.REFERENCE_WORLD_SIZE to the number of GPUs for which TRAIN.BATCH_SIZE was "
                "written."
            )
        processes = recipe.world_size // recipe.num_shards
        clips = clips // gpus * processes
        growth = processes / gpus
        values["TRAIN.BATCH_SIZE"] = clips
        values["TEST.BATCH_SIZE"] = max(1, recipe.test.batch_size // gpus) * processes
        values["SOLVER.REFERENCE_WORLD_SIZE"] = processes
    factor = 1.0
    if written_for:
        batch = clips * recipe.num_shards
        factor = batch_rate_factor(batch / written_for, solver.batch_rate_rule)
        for rate in ("SOLVER.BASE_LR", "SOLVER.WARMUP_START_LR", "SOLVER.COSINE_END_LR"):
            values[rate] = recipe[rate] * factor
        values["SOLVER.REFERENCE_BATCH_SIZE"] = batch
    if recipe.multigrid.stages:
        rows = scaled_rows(recipe.multigrid.stages, clips=growth, rate=factor)
        values["MULTIGRID.STAGES"] = rows
    return recipe.replaced(values)
