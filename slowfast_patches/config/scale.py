"""Scaling of a recipe: the number of epochs, and the learning rates."""

from __future__ import annotations

from collections.abc import Mapping

from multigrid import batch_rate_factor
from multigrid.stage_rows import row_shapes
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


def scale_rates(recipe: Recipe) -> Recipe:
    """Scale the learning rates from SOLVER.REFERENCE_BATCH_SIZE clips to the global batch size.

    SOLVER.BATCH_RATE_RULE is the scaling rule. The batch size and the number of epochs stay the
    same. In the returned recipe, SOLVER.REFERENCE_BATCH_SIZE is the global batch size, so that
    scaling the recipe again changes nothing. Without SOLVER.REFERENCE_BATCH_SIZE, nothing changes.

    `load_recipe` calls this function for NUM_SHARDS machines, and `resolve` calls it for the
    machines of a launcher.

    Raises:
        ValueError: No row of MULTIGRID.STAGES has the shape of the baseline's mini-batch, so
            TRAIN.BATCH_SIZE does not say for how many clips the rates of the rows are.
    """
    solver = recipe.solver
    if not solver.reference_batch_size:
        return recipe
    batch = recipe.base_shape.batch
    factor = batch_rate_factor(batch / solver.reference_batch_size, solver.batch_rate_rule)
    rates = ("SOLVER.BASE_LR", "SOLVER.WARMUP_START_LR", "SOLVER.COSINE_END_LR")
    values: dict[str, object] = {name: recipe[name] * factor for name in rates}
    values["SOLVER.REFERENCE_BATCH_SIZE"] = batch
    if recipe.multigrid.stages:
        _check_rows(recipe)
        values["MULTIGRID.STAGES"] = scaled_rows(recipe.multigrid.stages, rate=factor)
    return recipe.replaced(values)


def _check_rows(recipe: Recipe) -> None:
    baseline = [recipe.train.batch_size, recipe.data.num_frames, recipe.data.train_crop_size]
    rows = recipe.multigrid.stages
    if baseline not in [list(shape) for row in rows for shape in row_shapes(row)]:
        raise UserError(
            "SOLVER.REFERENCE_BATCH_SIZE would scale the learning rates of MULTIGRID.STAGES, but "
            f"no row has the baseline's shape {baseline} (TRAIN.BATCH_SIZE, DATA.NUM_FRAMES, "
            "DATA.TRAIN_CROP_SIZE). Change the batch sizes of the rows together with "
            "TRAIN.BATCH_SIZE, or set SOLVER.REFERENCE_BATCH_SIZE 0."
        )
