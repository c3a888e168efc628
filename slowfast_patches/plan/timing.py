"""How long the iterations of a recipe take: measured ones, or an estimate from one number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from multigrid import Shape
from multigrid.cost import FlopsPerClip, SecondsPerIteration
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import without_multigrid
from slowfast_patches.launch.launch import processes_of
from slowfast_patches.plan.step_times import StepTimes, fitting_step_times

__all__ = ["UNTIMED", "Timing", "estimated_timing", "measured_timing"]


@dataclass(frozen=True)
class Timing:
    """Seconds of an iteration of a recipe, and of its baseline, whose BN is another.

    `source` says in words where they come from. All are None where nothing is known.
    """

    ours: SecondsPerIteration | None
    baseline: SecondsPerIteration | None
    source: str | None


UNTIMED = Timing(None, None, None)


def measured_timing(files: Sequence[StepTimes], recipe: Recipe) -> Timing:
    """The times of a recipe and of its baseline, each from the first file that has them.

    Raises:
        MisfitError: no file has them; says why of each.
    """
    own = fitting_step_times(files, recipe)
    baseline_cfg = without_multigrid(recipe)
    baseline = fitting_step_times(files, baseline_cfg)
    sources = [_source(times) for times in ([own] if own is baseline else [own, baseline])]
    processes = processes_of(recipe)
    if processes > 1:
        sources.append(f"without communication between the {processes} processes")
    return Timing(
        ours=own.seconds_per_iteration(recipe),
        baseline=baseline.seconds_per_iteration(baseline_cfg),
        source="; ".join(sources),
    )


def _source(times: StepTimes) -> str:
    switches = [f"{key} {value}" for key, value in times.switches.items()]
    return ", ".join(
        [f"{times.path}, measured on {times.where} ({times.device}), {times.date}", *switches]
    )


def estimated_timing(recipe: Recipe, seconds: float, flops_per_clip: FlopsPerClip) -> Timing:
    """Times in proportion to training FLOPs, from those of an iteration at the baseline's shape.

    Raises:
        ValueError: `seconds` is not a number above 0.
    """
    if not (seconds > 0 and math.isfinite(seconds)):
        raise ValueError(f"an iteration takes a number of seconds above 0, not {seconds:g}")
    base = recipe.base_shape

    def work(shape: Shape) -> float:
        return shape.batch * flops_per_clip(shape.frames, shape.crop)

    def estimate(shape: Shape) -> float:
        return seconds * work(shape) / work(base)

    source = (
        f"an estimate, from {seconds:g} s at the baseline's shape and the training FLOPs of the "
        "others"
    )
    return Timing(estimate, estimate, source)
