"""The schedule that a recipe asks for, and the recipe as it is at an iteration."""

from __future__ import annotations

from multigrid import (
    CosineRate,
    Cycles,
    LearningRate,
    SamplingOptions,
    Schedule,
    SteppedRate,
    Warmup,
    check_processes,
    make_schedule,
)
from slowfast_patches.config.recipe import Recipe

__all__ = [
    "check_speed_of_schedule",
    "check_world_size",
    "cycle_keys",
    "cycles_of",
    "learning_rate_of",
    "recipe_at",
    "schedule_of",
    "without_multigrid",
]


def without_multigrid(recipe: Recipe) -> Recipe:
    """The baseline of a recipe: the same recipe with both cycles off."""
    if not recipe.uses_multigrid:
        return recipe
    return recipe.replaced({"MULTIGRID.LONG_CYCLE": False, "MULTIGRID.SHORT_CYCLE": False})


def learning_rate_of(recipe: Recipe) -> LearningRate:
    """The baseline's learning-rate policy.

    Steps take their rates from SOLVER.LRS, relative to BASE_LR, or, where LRS is empty, from powers
    of SOLVER.GAMMA.
    """
    solver = recipe.solver
    warmup = Warmup(solver.warmup_start_lr, solver.warmup_epochs)
    if solver.lr_policy == "cosine":
        return CosineRate(
            base=solver.base_lr,
            epochs=solver.max_epoch,
            end=solver.cosine_end_lr,
            warmup=warmup,
        )
    starts = tuple(float(step) for step in solver.steps) or (0.0,)
    factors = solver.lrs or tuple(solver.gamma**j for j in range(len(starts)))
    return SteppedRate(
        ends=(*starts[1:], solver.max_epoch),
        rates=tuple(solver.base_lr * factor for factor in factors),
        warmup=warmup,
    )


def cycles_of(recipe: Recipe) -> Cycles | None:
    """Return the cycles of a recipe, or None if both are off."""
    multigrid = recipe.multigrid
    if not recipe.uses_multigrid:
        return None
    return Cycles(
        long_cycle=multigrid.long_cycle_factors if multigrid.long_cycle else (),
        short_cycle=multigrid.short_cycle_factors if multigrid.short_cycle else (),
        epoch_factor=multigrid.epoch_factor,
        batch_exponent=multigrid.batch_exponent,
        sampling=SamplingOptions(keep_field_of_view=multigrid.keep_field_of_view),
    )


def cycle_keys(cycles: Cycles) -> dict[str, object]:
    """Return the keys that give a recipe these cycles, whatever cycles it had."""
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


def schedule_of(recipe: Recipe, num_videos: int) -> Schedule:
    """The schedule of a recipe for a training set of `num_videos` videos.

    With both cycles off it is the baseline recipe, and BN is left to each process's batch unless
    BN.GROUP_SIZE says otherwise.

    Raises:
        ValueError: the recipe has no schedule; the message has the way out.
    """
    _check_bn_groups(recipe)
    multigrid = recipe.multigrid
    return make_schedule(
        recipe.base_shape,
        num_videos,
        learning_rate_of(recipe),
        cycles_of(recipe),
        bn_size=recipe.bn_size or None,
        size_divisor=multigrid.size_divisor,
        batch_rate_rule=recipe.solver.batch_rate_rule,
        equal_time=multigrid.equal_time,
        warmup_in_epochs=recipe.uses_multigrid and multigrid.warmup_in_epochs,
        fine_tuning=multigrid.fine_tuning,
    )


def _check_bn_groups(recipe: Recipe) -> None:
    """Raise ValueError if the BN groups of a recipe do not divide the baseline's batch."""
    batch = recipe.base_shape.batch
    size = recipe.bn_size
    if not 0 < size < batch or batch % size == 0:
        return
    fitting = max(n for n in range(1, size) if batch % n == 0)
    raise ValueError(
        f"a global batch of {batch} clips (TRAIN.BATCH_SIZE {recipe.train.batch_size} × NUM_SHARDS "
        f"{recipe.num_shards}) cannot be split into BN groups of {size}: give TRAIN.BATCH_SIZE a "
        f"multiple of {size}, or set {recipe.bn_key} {fitting} (MULTIGRID.BN_BASE_SIZE is that of "
        "a multigrid training, BN.GROUP_SIZE of a baseline)"
    )


def check_world_size(recipe: Recipe, schedule: Schedule, world_size: int) -> None:
    """Raise ValueError if `world_size` processes cannot train a recipe's schedule.

    The message has the numbers of processes that can, and the keys that decide it.
    """
    try:
        check_processes(schedule, world_size)
    except ValueError as error:
        raise ValueError(
            f"{error} (TRAIN.BATCH_SIZE {recipe.train.batch_size}, NUM_SHARDS {recipe.num_shards}, "
            f"{recipe.bn_key} {recipe.bn_size})"
        ) from None
    check_speed_of_schedule(recipe, schedule, world_size)


def check_speed_of_schedule(recipe: Recipe, schedule: Schedule, world_size: int) -> None:
    """Refuse switches of speed and memory that a shape of a schedule cannot have.

    Raises:
        ValueError: TRAIN.COMPILE is on and processes share BN statistics; a process's BN groups do
            not divide into SOLVER.ACCUMULATION_STEPS parts.
    """
    parts = recipe.solver.accumulation_steps
    for phase in schedule.phases:
        for shape, size in zip(phase.shapes, phase.bn_sizes, strict=True):
            clips = shape.batch // world_size
            has_bn = recipe.model.has_batchnorm
            group = size if has_bn else 1
            if recipe.train.compile and (group or 0) > clips:
                raise ValueError(
                    f"TRAIN.COMPILE True: at {shape}, each of {world_size} processes has {clips} "
                    f"clips, and statistics over {group}, which processes share, cannot be part of "
                    "a compiled network; set it to False, or train on fewer processes or with a "
                    "larger TRAIN.BATCH_SIZE"
                )
            if parts > 1 and group is None:
                raise ValueError(
                    f"SOLVER.ACCUMULATION_STEPS {parts}: BN is over all clips that a process has, "
                    "and would be over fewer; set BN.GROUP_SIZE to the clips that share "
                    f"statistics, at most {clips // parts} here"
                )
            if parts > 1 and clips % ((group or 1) * parts):
                raise ValueError(
                    f"SOLVER.ACCUMULATION_STEPS {parts}: at {shape}, each of {world_size} "
                    f"process(es) has {clips} clips{f' in BN groups of {group}' * has_bn}, which "
                    f"do not divide into {parts} equal parts; set it to a divisor of "
                    f"{max(1, clips // (group or 1))}, or train with a larger TRAIN.BATCH_SIZE, on "
                    "fewer processes, or with smaller BN groups"
                )


def recipe_at(recipe: Recipe, schedule: Schedule, iteration: int) -> Recipe:
    """A copy of the recipe with the solver and data keys of the long-cycle shape in force.

    Its rates are those trained with. It is what gets logged and stored with checkpoints; nothing
    reads it back to train.
    """
    phase = schedule.phases[schedule.phase_at(iteration)]
    shape = phase.base_shape
    solver = recipe.solver
    values: dict[str, object] = {
        "SOLVER.REFERENCE_BATCH_SIZE": 0,
        "TRAIN.BATCH_SIZE": shape.batch // recipe.num_shards,
        "DATA.NUM_FRAMES": shape.frames,
        "DATA.TRAIN_CROP_SIZE": shape.crop,
        "SOLVER.BASE_LR": solver.base_lr * phase.lr_scale,
        "SOLVER.WARMUP_START_LR": solver.warmup_start_lr * phase.lr_scale,
        "SOLVER.COSINE_END_LR": solver.cosine_end_lr * phase.lr_scale,
    }
    return recipe.replaced(values)
