"""Schedules of recipes."""

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


def without_multigrid(recipe: Recipe) -> Recipe:
    """Return the baseline of a recipe: the recipe with both cycles off."""
    if not recipe.uses_multigrid:
        return recipe
    return recipe.replaced({"MULTIGRID.LONG_CYCLE": False, "MULTIGRID.SHORT_CYCLE": False})


def learning_rate_of(recipe: Recipe) -> LearningRate:
    """Return the learning-rate policy of the baseline.

    The rates of stages are SOLVER.LRS times BASE_LR. If LRS is empty, they fall by SOLVER.GAMMA.
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
    """Return the MULTIGRID keys, with their values, that give any recipe these cycles."""
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
    """Return the schedule of a recipe for a training set of `num_videos` videos.

    With both cycles off, it is the schedule of the baseline, and BN statistics are over the clips
    of a process unless BN.GROUP_SIZE is set.

    Raises:
        ValueError: The recipe has no valid schedule.
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
        f"{recipe.num_shards}) cannot be split into BN groups of {size}. Set TRAIN.BATCH_SIZE to a "
        f"multiple of {size}, or set {recipe.bn_key} {fitting}. MULTIGRID.BN_BASE_SIZE is the size "
        "for multigrid training, BN.GROUP_SIZE for a baseline."
    )


def check_world_size(recipe: Recipe, schedule: Schedule) -> None:
    """Check that the processes of a recipe can train its schedule.

    Raises:
        ValueError: They cannot. The message has the numbers of processes that can.
    """
    try:
        check_processes(schedule, recipe.world_size)
    except ValueError as error:
        raise ValueError(
            f"{error} (TRAIN.BATCH_SIZE {recipe.train.batch_size}, NUM_SHARDS {recipe.num_shards}, "
            f"{recipe.bn_key} {recipe.bn_size})"
        ) from None
    check_speed_of_schedule(recipe, schedule)


def check_speed_of_schedule(recipe: Recipe, schedule: Schedule) -> None:
    """Check that every shape supports TRAIN.COMPILE and SOLVER.ACCUMULATION_STEPS.

    Raises:
        ValueError: TRAIN.COMPILE is on while processes share BN statistics, or the BN groups of a
            process do not divide into SOLVER.ACCUMULATION_STEPS micro-batches.
    """
    world_size = recipe.world_size
    micro_batches = recipe.solver.accumulation_steps
    for phase in schedule.phases:
        for shape, size in zip(phase.shapes, phase.bn_sizes, strict=True):
            clips = shape.batch // world_size
            has_bn = recipe.model.has_batchnorm
            group = size if has_bn else 1
            if recipe.train.compile and (group or 0) > clips:
                raise ValueError(
                    f"TRAIN.COMPILE True: at {shape}, each of {world_size} processes has {clips} "
                    f"clips, but BN statistics are over {group} clips of several processes, which "
                    "a compiled network does not support. Set TRAIN.COMPILE False, use fewer "
                    "processes, or set a larger TRAIN.BATCH_SIZE."
                )
            if micro_batches > 1 and group is None:
                raise ValueError(
                    f"SOLVER.ACCUMULATION_STEPS {micro_batches} would change BN statistics, which "
                    "are over all clips of a process. To prevent this, set BN.GROUP_SIZE to the "
                    "number of clips that share statistics, at most "
                    f"{clips // micro_batches} here."
                )
            if micro_batches > 1 and clips % ((group or 1) * micro_batches):
                raise ValueError(
                    f"SOLVER.ACCUMULATION_STEPS {micro_batches}: at {shape}, each of {world_size} "
                    f"process(es) has {clips} clips{f' in BN groups of {group}' * has_bn}, which "
                    f"do not divide into {micro_batches} equal micro-batches. Set it to a divisor "
                    f"of {max(1, clips // (group or 1))}, or use a larger TRAIN.BATCH_SIZE, fewer "
                    "processes, or smaller BN groups."
                )


def recipe_at(recipe: Recipe, schedule: Schedule, iteration: int) -> Recipe:
    """Return a copy of the recipe with the solver and data keys of an iteration's phase.

    It is for logs and checkpoints; training never reads it back.
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
