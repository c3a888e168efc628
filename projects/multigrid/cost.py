"""What a schedule costs: iterations, epochs, clips, FLOPs and time, beside its baseline's."""

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
"""Iterations at the baseline's shape that a multigrid training should end with.

Measured: after coarse shapes a network scores at chance at the baseline's grid, and needs about as
many to show there what it has learned (docs/proof.md).
"""

FlopsPerClip = Callable[[int, int], float]
"""Training FLOPs (forward and backward) of one clip of (frames, crop)."""

SecondsPerIteration = Callable[[Shape], float]
"""Seconds of one iteration at a shape, loading and evaluation not included."""


@dataclass(frozen=True)
class Cost:
    """Totals of a training; FLOPs are None where the model is not known, seconds where its speed
    is not."""

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
    """What a schedule costs."""
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
    """What the same recipe costs without multigrid."""
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
    """Training FLOPs of one phase."""
    return sum(
        phase.count(j) * shape.batch * flops_per_clip(shape.frames, shape.crop)
        for j, shape in enumerate(phase.shapes)
    )


def phase_seconds(phase: Phase, seconds_per_iteration: SecondsPerIteration) -> float:
    """Seconds of one phase."""
    return sum(
        phase.count(j) * seconds_per_iteration(shape) for j, shape in enumerate(phase.shapes)
    )


def final_iterations(schedule: Schedule) -> int:
    """Iterations after the last coarse shape of a long cycle: those in which what coarse shapes
    taught is learned again at the baseline's grid. All, where there is no coarse one."""
    coarse = [phase.stop for phase in schedule.phases if phase.base_shape != schedule.base]
    return schedule.iterations - max(coarse, default=0)


def short_ends(schedule: Schedule) -> tuple[str, ...]:
    """A warning where the end of a training is too short to show what coarse shapes taught."""
    final = final_iterations(schedule)
    if final == schedule.iterations or final >= MIN_FINAL_ITERATIONS:
        return ()
    return (
        f"{final} iterations follow the last coarse shape; with fewer than {MIN_FINAL_ITERATIONS} "
        "at the baseline's shape, what coarse shapes taught hardly shows there. More epochs, a "
        "larger training set or a smaller batch give more",
    )


def cycle_advice(schedule: Schedule, line: str) -> tuple[str, ...]:
    """Return advice to use other cycles where a schedule's do not fit its length.

    Args:
        schedule: of any cycles; `better_cycles` says which are advised against.
        line: what to write, with "{name}" for the recommended cycles.
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
