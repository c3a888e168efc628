"""What a schedule costs: iterations, epochs, clips and FLOPs, beside its baseline's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from multigrid.schedule import Phase, Schedule

__all__ = [
    "Cost",
    "FlopsPerClip",
    "baseline_cost",
    "phase_flops",
    "schedule_cost",
    "shortest_phase",
]

FlopsPerClip = Callable[[int, int], float]
"""Training FLOPs (forward and backward) of one clip of (frames, crop)."""


@dataclass(frozen=True)
class Cost:
    """Totals of a training; FLOPs are None where the model is not known."""

    iterations: int
    epochs: float
    clips: int
    flops: float | None


def schedule_cost(schedule: Schedule, flops_per_clip: FlopsPerClip | None = None) -> Cost:
    """What a schedule costs."""
    flops = None
    if flops_per_clip is not None:
        flops = sum(phase_flops(phase, flops_per_clip) for phase in schedule.phases)
    clips = schedule.clips
    return Cost(schedule.iterations, clips / schedule.num_videos, clips, flops)


def baseline_cost(schedule: Schedule, flops_per_clip: FlopsPerClip | None = None) -> Cost:
    """What the same recipe costs without multigrid."""
    base, iterations = schedule.base, schedule.baseline_iterations
    clips = iterations * base.batch
    flops = None
    if flops_per_clip is not None:
        flops = clips * flops_per_clip(base.frames, base.crop)
    return Cost(iterations, clips / schedule.num_videos, clips, flops)


def phase_flops(phase: Phase, flops_per_clip: FlopsPerClip) -> float:
    """Training FLOPs of one phase."""
    return sum(
        phase.count(j) * shape.batch * flops_per_clip(shape.frames, shape.crop)
        for j, shape in enumerate(phase.shapes)
    )


def shortest_phase(schedule: Schedule) -> Phase:
    """The phase with the fewest iterations, which says whether multigrid can pay."""
    return min(schedule.phases, key=lambda phase: phase.iterations)
