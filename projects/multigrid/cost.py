"""Cost of a schedule and of its baseline: iterations, epochs, clips, FLOPs and time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from multigrid.cycles import PAPER_ITERATIONS, better_cycles
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
    "schedule_cost",
    "short_ends",
]

MIN_FINAL_ITERATIONS = 100
"""Least number of iterations at the baseline's shape at the end of a multigrid training.

Measured: directly after coarse shapes, a network scores at chance on the baseline's grid. It needs
about this many iterations to recover there what it has learned (docs/proof.md).
"""

FlopsPerClip = Callable[[int, int], float]
"""Function that returns the training FLOPs (forward and backward) of a clip of (frames, crop)."""

SecondsPerIteration = Callable[[Shape], float]
"""Function that returns the seconds of one iteration at a shape.

Loading and evaluation are not included.
"""


@dataclass(frozen=True)
class Cost:
    """Totals of a training.

    `flops` is None if the model is not known, `seconds` if its speed is not.
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
    """Compute the cost of a schedule."""
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
    """Compute the cost of the same recipe without multigrid."""
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
    """Compute the training FLOPs of one phase."""
    return sum(
        phase.count(j) * shape.batch * flops_per_clip(shape.frames, shape.crop)
        for j, shape in enumerate(phase.shapes)
    )


def phase_seconds(phase: Phase, seconds_per_iteration: SecondsPerIteration) -> float:
    """Compute the seconds of one phase."""
    return sum(
        phase.count(j) * seconds_per_iteration(shape) for j, shape in enumerate(phase.shapes)
    )


def final_iterations(schedule: Schedule) -> int:
    """Return the number of iterations after the last coarse shape of a long cycle.

    In these iterations the network adapts to the baseline's grid. Without coarse shapes they are
    all iterations of the schedule.
    """
    coarse = [phase.stop for phase in schedule.phases if phase.base_shape != schedule.base]
    return schedule.iterations - max(coarse, default=0)


def short_ends(schedule: Schedule) -> tuple[str, ...]:
    """Return a warning if too few iterations follow the last coarse shape.

    See `MIN_FINAL_ITERATIONS`.
    """
    final = final_iterations(schedule)
    if final == schedule.iterations or final >= MIN_FINAL_ITERATIONS:
        return ()
    return (
        f"{final} iterations follow the last coarse shape. With fewer than {MIN_FINAL_ITERATIONS} "
        "at the baseline's shape, the model hardly recovers there what it learned on coarse "
        "shapes. Train for more epochs, on more videos or with a smaller batch",
    )


def cycle_advice(schedule: Schedule, line: str) -> tuple[str, ...]:
    """Return advice to use other cycles if a schedule's do not fit its length.

    Args:
        schedule: the schedule. `better_cycles` determines which of its cycles to advise against.
        line: the code or key to write, with "{name}" for the recommended cycles.
    """
    iterations = schedule.baseline_iterations
    better = better_cycles(schedule.cycles, iterations)
    if better is None:
        return ()
    side = "fewer" if iterations < PAPER_ITERATIONS else "no fewer"
    return (
        f"the baseline has {iterations:,} iterations, {side} than {PAPER_ITERATIONS:,}: "
        f"{better.name} is recommended for that length. To use it, write "
        f"{line.format(name=better.name)}",
    )
