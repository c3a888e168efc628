"""Convert values of PySlowFast's config keys to a schedule, cycles and a learning rate.

The functions take values, not a config object. Their argument `value_of` is a function that returns
the value of a key, such as "DATA.NUM_FRAMES".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multigrid.cycles import Cycles
from multigrid.errors import MultigridError
from multigrid.grids import SamplingOptions
from multigrid.learning_rate import CosineRate, LearningRate, SteppedRate, Warmup
from multigrid.phases import make_schedule
from multigrid.schedule import Phase, Schedule
from multigrid.shapes import CostPerClip, Shape

_RATES = ("SOLVER.BASE_LR", "SOLVER.WARMUP_START_LR", "SOLVER.COSINE_END_LR")
"""Keys whose values are learning rates."""


def schedule_from(
    value_of: Callable[[str], Any],
    num_videos: int,
    bn_group_size: int,
    learning_rate: LearningRate | None = None,
    cost_per_clip: CostPerClip | None = None,
) -> Schedule:
    """Build the schedule that the values of keys describe.

    Args:
        value_of: Function that returns the value of a key, such as "DATA.NUM_FRAMES".
        num_videos: Number of training videos.
        bn_group_size: Number of clips that share BN statistics, or 0 for the clips of each process.
        learning_rate: Learning-rate policy of the baseline. None means the policy in SOLVER.
        cost_per_clip: See `make_schedule`.

    Raises:
        ValueError: The values describe no valid schedule.
    """
    cycles = cycles_from(value_of)
    return make_schedule(
        base_shape(value_of),
        num_videos,
        learning_rate or rate_from(value_of),
        cycles,
        bn_group_size=bn_group_size or None,
        size_divisor=value_of("MULTIGRID.SIZE_DIVISOR"),
        batch_rate_rule=value_of("SOLVER.BATCH_RATE_RULE"),
        equal_time=value_of("MULTIGRID.EQUAL_TIME"),
        warmup_in_epochs=cycles is not None and value_of("MULTIGRID.WARMUP_IN_EPOCHS"),
        fine_tuning=value_of("MULTIGRID.FINE_TUNING"),
        cost_per_clip=cost_per_clip,
    )


def base_shape(value_of: Callable[[str], Any]) -> Shape:
    """Return the shape of the baseline's mini-batch over all machines (see `schedule_from`)."""
    batch = value_of("TRAIN.BATCH_SIZE") * value_of("NUM_SHARDS")
    return Shape(batch, value_of("DATA.NUM_FRAMES"), value_of("DATA.TRAIN_CROP_SIZE"))


def cycles_from(value_of: Callable[[str], Any]) -> Cycles | None:
    """Return the long and short cycle, or None if both are off (see `schedule_from`)."""
    long_cycle, short_cycle = value_of("MULTIGRID.LONG_CYCLE"), value_of("MULTIGRID.SHORT_CYCLE")
    if not (long_cycle or short_cycle):
        return None
    factors = tuple((t, s) for t, s in value_of("MULTIGRID.LONG_CYCLE_FACTORS"))
    return Cycles(
        long_cycle=factors if long_cycle else (),
        short_cycle=tuple(value_of("MULTIGRID.SHORT_CYCLE_FACTORS")) if short_cycle else (),
        epoch_factor=value_of("MULTIGRID.EPOCH_FACTOR"),
        batch_exponent=value_of("MULTIGRID.BATCH_EXPONENT"),
        sampling=SamplingOptions(keep_field_of_view=value_of("MULTIGRID.KEEP_FIELD_OF_VIEW")),
    )


def rate_from(value_of: Callable[[str], Any]) -> LearningRate:
    """Return the learning-rate policy of the keys SOLVER.* (see `schedule_from`).

    Supported values of LR_POLICY are `cosine`, `steps_with_relative_lrs` (LRS are multiples of
    BASE_LR) and `steps_with_lrs` (LRS are learning rates). Without LRS, each stage multiplies the
    learning rate of the previous stage by GAMMA.

    Raises:
        ValueError: LR_POLICY is not supported, or STEPS and LRS do not agree.
    """
    base, policy = value_of("SOLVER.BASE_LR"), value_of("SOLVER.LR_POLICY")
    end = float(value_of("SOLVER.MAX_EPOCH"))
    warmup = Warmup(value_of("SOLVER.WARMUP_START_LR"), value_of("SOLVER.WARMUP_EPOCHS"))
    if policy == "cosine":
        return CosineRate(
            base=base,
            epochs=end,
            end=value_of("SOLVER.COSINE_END_LR"),
            warmup=warmup,
            after_warmup=value_of("SOLVER.COSINE_AFTER_WARMUP"),
        )
    if policy not in ("steps_with_relative_lrs", "steps_with_lrs"):
        raise MultigridError(
            f"SOLVER.LR_POLICY {policy} is not supported. Use cosine, steps_with_relative_lrs or "
            "steps_with_lrs, or pass learning_rate=CosineRate(...) to PySlowFastMultigrid"
        )
    steps, factors = value_of("SOLVER.STEPS"), value_of("SOLVER.LRS")
    # Ignore surplus LRS and steps at or after MAX_EPOCH, because no iteration uses them.
    starts = [float(step) for step in steps if step < end] or [0.0]
    gamma = value_of("SOLVER.GAMMA")
    rates = list(factors)[: len(starts)] or [gamma**j for j in range(len(starts))]
    if starts[0] != 0 or len(rates) != len(starts):
        raise MultigridError(
            f"SOLVER.STEPS {list(steps)} must start with 0, and SOLVER.LRS {list(factors)} must "
            "have one value per step"
        )
    unit = 1.0 if policy == "steps_with_lrs" and factors else base
    return SteppedRate((*starts[1:], end), tuple(unit * rate for rate in rates), warmup)


def phase_keys(phase: Phase, num_shards: int, value_of: Callable[[str], Any]) -> dict[str, Any]:
    """Return the shape and the learning rates of a phase, as config values by full key.

    Args:
        phase: Phase of the schedule.
        num_shards: Number of machines. TRAIN.BATCH_SIZE is the batch size of one machine.
        value_of: Function that returns the baseline's value of a key.
    """
    shape = phase.base_shape
    return {
        "TRAIN.BATCH_SIZE": shape.batch // num_shards,
        "DATA.NUM_FRAMES": shape.frames,
        "DATA.TRAIN_CROP_SIZE": shape.crop,
        **{key: value_of(key) * phase.lr_scale for key in _RATES},
    }


def phase_evaluations(phase: Phase, times: int) -> set[int]:
    """Return the numbers of iterations after which a phase is evaluated, `times` in all."""
    parts = (phase.iterations * (k + 1) / times for k in range(times))
    return {phase.start + max(1, round(part)) for part in parts}
