"""Cost of a schedule and of its baseline: iterations, epochs, clips, FLOPs and time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from multigrid.cycles import PAPER_ITERATIONS, better_cycles
from multigrid.learning_rate import is_adaptive
from multigrid.schedule import Phase, Schedule
from multigrid.shapes import Shape

__all__ = [
    "MIN_FINAL_ITERATIONS",
    "Cost",
    "FlopsPerClip",
    "SecondsPerIteration",
    "baseline_cost",
    "cycle_advice",
    "final_iterations",
    "phase_flops",
    "phase_seconds",
    "rate_rule_advice",
    "schedule_cost",
    "short_ends",
]

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


def schedule_cost(
    schedule: Schedule,
    flops_per_clip: FlopsPerClip | None = None,
    seconds_per_iteration: SecondsPerIteration | None = None,
) -> Cost:
    """Return the cost of a training that follows the schedule."""
    flops = seconds = None
    if flops_per_clip is not None:
        flops = sum(phase_flops(phase, flops_per_clip) for phase in schedule.phases)
    if seconds_per_iteration is not None:
        seconds = sum(phase_seconds(phase, seconds_per_iteration) for phase in schedule.phases)
    clips = schedule.clips
    return Cost(schedule.iterations, clips / schedule.num_videos, clips, flops, seconds)


def baseline_cost(
    schedule: Schedule,
    flops_per_clip: FlopsPerClip | None = None,
    seconds_per_iteration: SecondsPerIteration | None = None,
) -> Cost:
    """Return the cost of the baseline that the schedule was made for."""
    base = schedule.base
    iterations = schedule.baseline_iterations
    clips = iterations * base.batch
    flops = seconds = None
    if flops_per_clip is not None:
        flops = clips * flops_per_clip(base.frames, base.crop)
    if seconds_per_iteration is not None:
        seconds = iterations * seconds_per_iteration(base)
    return Cost(iterations, clips / schedule.num_videos, clips, flops, seconds)


def phase_flops(phase: Phase, flops_per_clip: FlopsPerClip) -> float:
    """Return the forward and backward FLOPs of all clips of a phase."""
    return sum(
        phase.count(j) * shape.batch * flops_per_clip(shape.frames, shape.crop)
        for j, shape in enumerate(phase.shapes)
    )


def phase_seconds(phase: Phase, seconds_per_iteration: SecondsPerIteration) -> float:
    """Return the training time of a phase in seconds, excluding data loading and evaluation."""
    return sum(
        phase.count(j) * seconds_per_iteration(shape) for j, shape in enumerate(phase.shapes)
    )


def final_iterations(schedule: Schedule) -> int:
    """Return the number of iterations at the baseline's shape at the end of the schedule.

    In these iterations, the network adapts to the baseline's shape. If every phase has the
    baseline's shape, return the length of the schedule.
    """
    coarse = [phase.stop for phase in schedule.phases if phase.base_shape != schedule.base]
    return schedule.iterations - max(coarse, default=0)


def short_ends(schedule: Schedule) -> tuple[str, ...]:
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
    """Return advice to use other cycles if `better_cycles` recommends some for the schedule.

    Args:
        schedule: The schedule to check.
        line: The code or the config key that selects cycles, with "{name}" in place of their name.

    Returns:
        A tuple of one message, or an empty tuple if there is nothing to advise.
    """
    iterations = schedule.baseline_iterations
    better = better_cycles(schedule.cycles, iterations)
    if better is None:
        return ()
    side = "below" if iterations < PAPER_ITERATIONS else "at least"
    return (
        f"the baseline has {iterations:,} iterations ({side} {PAPER_ITERATIONS:,}). The "
        f"{better.name} cycles are recommended for this length. To use them, write "
        f"{line.format(name=better.name)}",
    )


def rate_rule_advice(schedule: Schedule, optimizer: type) -> tuple[str, ...]:
    """Return advice to use the rule "sqrt" if the linear rule scales the rates of Adam or the like.

    Args:
        schedule: The schedule to check.
        optimizer: Class of the optimizer.

    Returns:
        A tuple of one message, or an empty tuple if there is nothing to advise.
    """
    base = schedule.base.batch
    phase = max(schedule.phases, key=lambda phase: phase.lr_scale)
    is_linear = phase.lr_scale > 1 and phase.lr_scale == phase.base_shape.batch / base
    if not is_linear or not any(is_adaptive(kind.__name__) for kind in optimizer.__mro__):
        return ()
    return (
        f"the linear rule multiplies the learning rate by up to {phase.lr_scale:g}, because the "
        f"batch grows. This rule is for SGD, but the optimizer is {optimizer.__name__}. Use "
        'make_schedule(..., batch_rate_rule="sqrt") (Malladi et al., 2022)',
    )
