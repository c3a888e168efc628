"""Step times of a recipe: measured at every shape, or estimated from the time at one shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from multigrid import Shape
from multigrid.cost import SecondsPerIteration, iteration_flops
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.recipe_cycles import without_multigrid
from slowfast_patches.plan.flops import flops_per_clip
from slowfast_patches.plan.recipe_schedule import schedule_of
from slowfast_patches.plan.step_times import MisfitError, StepTimes, read_step_times
from slowfast_patches.utils.errors import UserError

MANY_VIDEOS = 10**7
"""Number of videos that is large enough for every phase to use each of its shapes."""


@dataclass(frozen=True)
class RecipeTimes:
    """Seconds per iteration of a recipe and of its baseline.

    At the same shape, the two times differ, because multigrid computes BN over groups of clips. All
    attributes are None if the times are unknown.

    Attributes:
        ours: Function from a shape to the seconds per iteration of the recipe.
        baseline: Function from a shape to the seconds per iteration of the baseline.
        source: Description of where the times come from.
        clocks: What the times were measured with (`StepTimes.clock`).
    """

    ours: SecondsPerIteration | None
    baseline: SecondsPerIteration | None
    source: str | None
    clocks: frozenset[str] = frozenset()


UNTIMED = RecipeTimes(None, None, None)
"""RecipeTimes of a recipe whose step times are unknown."""


def measured_times(files: Sequence[Path], recipe: Recipe) -> RecipeTimes:
    """Return the times of a recipe and of its baseline, each from the first file that applies.

    Raises:
        MisfitError: No file applies. The message gives the reason for each file.
        ValueError: A file is not a file of step times.
    """
    contents = list(map(read_step_times, files))
    own, ours = _first_fit(contents, recipe)
    other, baseline = _first_fit(contents, without_multigrid(recipe))
    sources = list(dict.fromkeys([own.source, other.source]))
    if (processes := recipe.world_size) > 1:
        sources.append(f"without communication between the {processes} processes")
    return RecipeTimes(ours, baseline, "; ".join(sources), frozenset((own.clock, other.clock)))


def _first_fit(files: Sequence[StepTimes], recipe: Recipe) -> tuple[StepTimes, SecondsPerIteration]:
    reasons = list[str]()
    for times in files:
        try:
            look_up = times.of_recipe(recipe)
            for shape, bn_group_size in shapes_to_measure(recipe):
                if (bn_group_size is not None) == recipe.groups_batchnorm:
                    look_up(shape)
            return times, look_up
        except MisfitError as error:
            reasons.append(str(error))
    raise MisfitError("; ".join(reasons))


def find_times(recipe: Recipe, seconds: float | None, files: Sequence[Path]) -> RecipeTimes:
    """Return the times of a recipe and of its baseline, or `UNTIMED` without `seconds` and `files`.

    Args:
        recipe: The recipe.
        seconds: Seconds per iteration at the baseline's shape, from which the times at the other
            shapes are estimated by their training FLOPs. If None, the files are read instead.
        files: Files of step times.

    Raises:
        ValueError: No file applies to the recipe.
    """
    if seconds is not None:
        work = partial(iteration_flops, flops_per_clip=flops_per_clip(recipe))
        rate = seconds / work(recipe.base_shape)
        source = f"an estimate, from {seconds:g} s at the baseline's shape and the training FLOPs"

        def estimate(shape: Shape) -> float:
            return rate * work(shape)

        return RecipeTimes(estimate, estimate, source)
    try:
        return measured_times(files, recipe) if files else UNTIMED
    except MisfitError as error:
        raise UserError(
            f"{error}. Measure the step times of this recipe (docs/performance.md), or estimate "
            "them with --step-seconds S."
        ) from error


def shapes_to_measure(recipe: Recipe) -> list[tuple[Shape, int | None]]:
    """Return (shape, BN group size) for the baseline and each shape of a recipe's schedule.

    The BN group size is the number of clips that share BN statistics. None means all clips of a
    process. The first entry is the baseline's shape with None. If the schedule has several BN group
    sizes for a shape, only the smallest is returned, which has the most groups.
    """
    schedule = schedule_of(recipe, MANY_VIDEOS)
    sizes: dict[Shape, list[int]] = {}
    for phase in schedule.phases:
        for shape, size in zip(phase.shapes, phase.bn_group_sizes, strict=True):
            sizes.setdefault(shape, []).extend([] if size is None else [size])
    smallest = ((shape, min(given, default=None)) for shape, given in sizes.items())
    return list(dict.fromkeys([(schedule.base, None), *smallest]))
