"""Baseline, learning rate and cycles of a recipe, and checks of its schedule."""

from __future__ import annotations

from multigrid import Cycles, LearningRate, MultigridError, Schedule, check_processes
from multigrid.batchnorm import check_accumulation
from multigrid.config_values import cycles_from, phase_keys, rate_from
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.utils.errors import UserError


def without_multigrid(recipe: Recipe) -> Recipe:
    """Return the baseline of a recipe: the recipe with both cycles off and without stages."""
    if not recipe.uses_multigrid:
        return recipe
    cycles = {"MULTIGRID.LONG_CYCLE": False, "MULTIGRID.SHORT_CYCLE": False}
    return recipe.replaced({**cycles, "MULTIGRID.STAGES": ()})


def learning_rate_of(recipe: Recipe) -> LearningRate:
    """Return the learning-rate policy of the baseline."""
    return rate_from(recipe.__getitem__)


def cycles_of(recipe: Recipe) -> Cycles | None:
    """Return the long and short cycle of a recipe, or None if both cycles are off."""
    return cycles_from(recipe.__getitem__)


def cycle_keys(cycles: Cycles) -> dict[str, object]:
    """Return the MULTIGRID keys, with values, that describe the given cycles."""
    keys: dict[str, object] = {
        "LONG_CYCLE": bool(cycles.long_cycle),
        "LONG_CYCLE_FACTORS": [list(factors) for factors in cycles.long_cycle],
        "SHORT_CYCLE": bool(cycles.short_cycle),
        "SHORT_CYCLE_FACTORS": list(cycles.short_cycle),
        "BATCH_EXPONENT": cycles.batch_exponent,
        "KEEP_FIELD_OF_VIEW": cycles.sampling.keep_field_of_view,
        "EPOCH_FACTOR": cycles.epoch_factor,
    }
    return {f"MULTIGRID.{name}": value for name, value in keys.items() if value != []}


def check_world_size(recipe: Recipe, schedule: Schedule) -> None:
    """Check that the processes of a recipe can train every shape of a schedule.

    Raises:
        ValueError: The mini-batches cannot be split over the processes, or the BN groups of a
            process cannot be split into SOLVER.ACCUMULATION_STEPS micro-batches. Or TRAIN.COMPILE
            is on although several processes share BN statistics.
    """
    world_size = recipe.world_size
    steps = recipe.solver.accumulation_steps
    has_batchnorm = recipe.model.has_batchnorm
    try:
        check_processes(schedule, world_size)
        check_accumulation(schedule, world_size, steps, has_batchnorm)
    except MultigridError as error:
        raise UserError(
            f"{error} (TRAIN.BATCH_SIZE {recipe.train.batch_size}, NUM_SHARDS {recipe.num_shards}, "
            f"{recipe.bn_key} {recipe.bn_group_size}, SOLVER.ACCUMULATION_STEPS {steps})"
        ) from None
    for phase in schedule.phases:
        for shape, size in zip(phase.shapes, phase.bn_group_sizes, strict=True):
            clips = shape.batch // world_size
            if recipe.train.compile and has_batchnorm and (size or 0) > clips:
                raise UserError(
                    f"TRAIN.COMPILE True is not possible at {shape}: a process has only {clips} "
                    f"clips, so a BN group of {size} clips spans several processes. Set "
                    "TRAIN.COMPILE False, use fewer processes, or set a larger TRAIN.BATCH_SIZE."
                )


def recipe_at(recipe: Recipe, schedule: Schedule, iteration: int) -> Recipe:
    """Return a copy of the recipe with the shape and learning rates of the phase at `iteration`.

    The log shows the keys that change at the start of a phase, `multigrid-plan --at` prints the
    copy, and checkpoints contain it. Training does not use it.
    """
    phase = schedule.phases[schedule.phase_at(iteration)]
    values = phase_keys(phase, recipe.num_shards, recipe.__getitem__)
    return recipe.replaced({"SOLVER.REFERENCE_BATCH_SIZE": 0, **values})


def changed_keys(recipe: Recipe, schedule: Schedule, iteration: int, before: int | None) -> str:
    """Return the keys that differ between two iterations, such as "DATA.NUM_FRAMES 8".

    Args:
        recipe: The recipe.
        schedule: The schedule of the recipe.
        iteration: The iteration whose values are returned.
        before: The iteration to compare with, or None for the recipe itself.
    """
    now = recipe_at(recipe, schedule, iteration)
    then = recipe if before is None else recipe_at(recipe, schedule, before)
    names = phase_keys(schedule.phases[0], recipe.num_shards, recipe.__getitem__)
    values = {name: now[name] for name in names if now[name] != then[name]}
    return ", ".join(
        f"{n} {v:.6g}" if isinstance(v, float) else f"{n} {v}" for n, v in values.items()
    )
