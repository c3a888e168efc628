"""Cost of a schedule and of its baseline: iterations, epochs, clips, FLOPs and time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch.optim import Optimizer

from multigrid.cycles import GENTLE, PAPER, PAPER_ITERATIONS, recommend_cycles
from multigrid.learning_rate import suits_linear_rule
from multigrid.schedule import Phase, Schedule
from multigrid.shapes import Shape

MIN_FINAL_ITERATIONS = 100
"""Minimum number of iterations at the baseline's shape at the end of a multigrid training.

Measured: a network trained on smaller shapes first scores at chance level at the baseline's shape.
It needs about this many iterations to reach the accuracy that it had at the smaller shapes
(benchmarks/real_video/README.md).
"""

FlopsPerClip = Callable[[int, int], float]
"""Function of (frames, crop) that returns the forward and backward FLOPs of one clip."""

SecondsPerIteration = Callable[[Shape], float]
"""Function of a shape that returns the seconds of one training step, excluding data loading."""


@dataclass(frozen=True)
class Cost:
    """Cost of a whole training.

    Attributes:
        iterations: Number of iterations.
        epochs: Number of epochs.
        clips: Number of clips.
        flops: Forward and backward FLOPs, or None if the FLOPs per clip are not known.
        seconds: Training time, excluding data loading and evaluation, or None if the step times are
            not known.
    """

    iterations: int
    epochs: float
    clips: int
    flops: float | None = None
    seconds: float | None = None


def iteration_flops(shape: Shape, flops_per_clip: FlopsPerClip) -> float:
    """Return the FLOPs of one iteration with a shape."""
    return shape.batch * flops_per_clip(shape.frames, shape.crop)


def schedule_cost(
    schedule: Schedule,
    flops_per_clip: FlopsPerClip | None = None,
    seconds_per_iteration: SecondsPerIteration | None = None,
    phases: Sequence[Phase] | None = None,
) -> Cost:
    """Return the cost of a training that follows the schedule.

    Args:
        schedule: The schedule.
        flops_per_clip: Function that returns the FLOPs of a clip.
        seconds_per_iteration: Function that returns the time of a training step.
        phases: Phases to count. None means all phases of the schedule.
    """
    counts = [
        (shape, phase.count(j))
        for phase in (schedule.phases if phases is None else phases)
        for j, shape in enumerate(phase.shapes)
    ]
    return _cost(counts, schedule.num_videos, flops_per_clip, seconds_per_iteration)


def baseline_cost(
    schedule: Schedule,
    flops_per_clip: FlopsPerClip | None = None,
    seconds_per_iteration: SecondsPerIteration | None = None,
) -> Cost:
    """Return the cost of the baseline that the schedule was made for."""
    counts = [(schedule.base, schedule.baseline_iterations)]
    return _cost(counts, schedule.num_videos, flops_per_clip, seconds_per_iteration)


def _cost(
    counts: Sequence[tuple[Shape, int]],
    num_videos: int,
    flops_per_clip: FlopsPerClip | None,
    seconds_per_iteration: SecondsPerIteration | None,
) -> Cost:
    """Return the cost of a given number of iterations at each shape."""
    clips = sum(count * shape.batch for shape, count in counts)
    flops = seconds = None
    if flops_per_clip is not None:
        flops = sum(count * iteration_flops(shape, flops_per_clip) for shape, count in counts)
    if seconds_per_iteration is not None:
        seconds = sum(count * seconds_per_iteration(shape) for shape, count in counts)
    iterations = sum(count for _, count in counts)
    return Cost(iterations, clips / num_videos, clips, flops, seconds)


def final_iterations(schedule: Schedule) -> int:
    """Return the number of iterations at the baseline's shape at the end of the schedule.

    In these iterations, the network adapts to the baseline's shape. If every phase has the
    baseline's shape, return the length of the schedule.
    """
    coarse = [phase.stop for phase in schedule.phases if phase.base_shape != schedule.base]
    return schedule.iterations - max(coarse, default=0)


def fine_tuning_warnings(schedule: Schedule) -> tuple[str, ...]:
    """Return a warning if the training ends with too few iterations at the baseline's shape.

    Returns:
        A tuple of one message if there are fewer than `MIN_FINAL_ITERATIONS`, else an empty tuple.
    """
    final = final_iterations(schedule)
    if final == schedule.iterations or final >= MIN_FINAL_ITERATIONS:
        return ()
    return (
        f"the training ends with {final} iterations at the baseline's shape. The model needs about "
        f"{MIN_FINAL_ITERATIONS} to adapt to that shape after training on smaller shapes. Train "
        "for more epochs, on more videos or with a smaller batch",
    )


def cycle_advice(schedule: Schedule, line: str) -> tuple[str, ...]:
    """Return advice to use other cycles if the cycles of a schedule do not fit its length.

    For short trainings, `GENTLE` is recommended in place of cycles whose batch grows by Equation 1.
    For long trainings, `PAPER` is recommended in place of the long cycle of `GENTLE` without a
    short cycle. Nothing is recommended for the baseline.

    Args:
        schedule: The schedule to check.
        line: The code or the config key that selects cycles, with "{name}" in place of their name.

    Returns:
        A tuple of one message, or an empty tuple if there is nothing to advise.
    """
    cycles = schedule.cycles
    iterations = schedule.baseline_iterations
    better = recommend_cycles(iterations)
    if cycles is None:
        return ()
    if better is PAPER:
        side = "at least"
        fits = bool(cycles.short_cycle) or cycles.long_cycle != GENTLE.long_cycle
    else:
        side = "below"
        fits = cycles.batch_exponent != PAPER.batch_exponent
    if fits:
        return ()
    return (
        f"the baseline has {iterations:,} iterations ({side} {PAPER_ITERATIONS:,}). The "
        f"{better.name} cycles are recommended for this length. To use them, write "
        f"{line.format(name=better.name)}",
    )


def rate_rule_advice(schedule: Schedule, optimizer: Optimizer) -> tuple[str, ...]:
    """Return advice to use the rule "sqrt" if the linear rule is used with an adaptive optimizer.

    Parameter groups with a "batch_rate_rule" of their own need no advice.

    Args:
        schedule: The schedule to check.
        optimizer: The optimizer.

    Returns:
        A tuple of one message, or an empty tuple if there is nothing to advise.
    """
    base = schedule.base.batch
    phase = max(schedule.phases, key=lambda phase: phase.lr_scale)
    is_linear = phase.lr_scale > 1 and phase.lr_scale == phase.base_shape.batch / base
    by_schedule = any("batch_rate_rule" not in group for group in optimizer.param_groups)
    name = type(optimizer).__name__
    if not (is_linear and by_schedule) or any(map(suits_linear_rule, type(optimizer).__mro__)):
        return ()
    return (
        f"the linear rule multiplies the learning rate by up to {phase.lr_scale:g}, because the "
        f"batch grows. This rule is for SGD, but the optimizer is {name}. Use "
        'make_schedule(..., batch_rate_rule="sqrt") (Malladi et al., 2022). For one of several '
        'optimizers, set group["batch_rate_rule"] = "sqrt" in its parameter groups',
    )
