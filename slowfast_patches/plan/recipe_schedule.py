"""Make the schedule of a recipe."""

from __future__ import annotations

from multigrid import Schedule, make_schedule
from multigrid.config_values import schedule_from
from multigrid.shapes import CostPerClip
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.recipe_cycles import learning_rate_of
from slowfast_patches.config.recipe_stages import stages_of
from slowfast_patches.plan.flops import flops_per_clip
from slowfast_patches.plan.step_times import read_step_times
from slowfast_patches.utils.errors import UserError


def schedule_of(recipe: Recipe, num_videos: int) -> Schedule:
    """Return the schedule of a recipe for a training set of `num_videos` videos.

    If both cycles are off and there are no stages, this is the schedule of the baseline. In the
    baseline, the clips of each process share BN statistics unless BN.GROUP_SIZE is set.

    Raises:
        ValueError: No valid schedule exists for the recipe.
    """
    if stages := stages_of(recipe):
        policy = learning_rate_of(recipe) if any(s.rate is None for s in stages) else None
        return make_schedule(recipe.base_shape, num_videos, policy, stages=stages)
    _check_bn_groups(recipe)
    cost = _cost_per_clip(recipe) if recipe.uses_multigrid else None
    return schedule_from(recipe.__getitem__, num_videos, recipe.bn_group_size, cost_per_clip=cost)


def _cost_per_clip(recipe: Recipe) -> CostPerClip | None:
    """Return the cost per clip that MULTIGRID.BATCH_BY selects. None means the number of pixels."""
    unit = recipe.multigrid.batch_by
    if unit == "pixels":
        return None
    if unit == "flops":
        return flops_per_clip(recipe)
    return read_step_times(unit).seconds_per_clip(recipe)


def _check_bn_groups(recipe: Recipe) -> None:
    """Raise ValueError if the baseline's batch cannot be split into BN groups of equal size."""
    batch = recipe.base_shape.batch
    size = recipe.bn_group_size
    if size and batch % min(size, batch):
        raise UserError(
            f"a global batch of {batch} clips (TRAIN.BATCH_SIZE {recipe.train.batch_size} × "
            f"NUM_SHARDS {recipe.num_shards}) cannot be split into BN groups of {size}. Set "
            f"TRAIN.BATCH_SIZE to a multiple of {size}, or {recipe.bn_key} to a divisor of "
            f"{batch}. MULTIGRID.BN_BASE_SIZE applies to multigrid training, and BN.GROUP_SIZE "
            "applies to a baseline."
        )
