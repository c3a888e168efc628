"""What follows from measured steps: rates, shares, ratios, hours, and which switches pay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from step_bench import quartiles
from step_variants import SWITCHES

from multigrid import Cost, Schedule, Shape, baseline_cost, schedule_cost
from multigrid.cost import FlopsPerClip
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import schedule_of
from slowfast_patches.plan.step_times import MANY_VIDEOS, shapes_to_measure

__all__ = ["REFERENCES", "Row", "add_rates", "add_relative", "matching_rows", "recommend", "totals"]

REFERENCES = ("plain", "host")
"""Variants that the others are relative to."""

Row = dict[str, Any]
"""What is known of a shape: "shape" (of all processes), "local_clips", "bn_size", "seconds" with
quartiles and rounds, None beside a "failure"."""


def add_rates(row: Row, flops_per_clip: FlopsPerClip, matrix_rate: float) -> None:
    """Put clips, pixels and operations a second beside the seconds of a shape.

    Args:
        row: with "shape", "local_clips" and "seconds", None where there are none.
        flops_per_clip: training FLOPs of a clip of (frames, crop).
        matrix_rate: the device's, in FLOP/s.
    """
    if row["seconds"] is None:
        return
    _, frames, crop = row["shape"]
    clips = [row["local_clips"] / seconds for seconds in row["seconds"]["rounds"]]
    flops = [each * flops_per_clip(frames, crop) for each in clips]
    row["clips_per_second"] = _spread(clips)
    row["pixels_per_second"] = _spread([each * frames * crop**2 for each in clips])
    row["flops_per_second"] = _spread(flops)
    row["matrix_share"] = _spread([each / matrix_rate for each in flops])


def _spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles; the rounds stay with what was measured."""
    found = quartiles(values)
    del found["rounds"]
    return found


def add_relative(name: str, cfgs: Sequence[Recipe], variants: Sequence[Row]) -> None:
    """Put the ratios to one variant beside the times of the others, where it is measured.

    A shape has how many times the clips a second it has, the whole schedule how many times shorter
    it is; "matches" says which of the other's shapes stands in the place of each.

    Args:
        name: the variant that the others are relative to.
        cfgs: the recipe of each variant.
        variants: with "name", "shapes" and "totals", in each of which "relative" gets the ratio.
    """
    number = next((i for i, variant in enumerate(variants) if variant["name"] == name), None)
    for recipe, variant in zip(cfgs, variants, strict=True):
        variant.setdefault("matches", {})
        for found in [*variant["shapes"], variant["totals"]]:
            found.setdefault("relative", {})
        if number is None or variant["name"] == name or not variant["shapes"]:
            continue
        other = variants[number]
        if not other["shapes"]:
            continue
        variant["matches"][name] = matches = matching_rows(recipe, cfgs[number])
        for row, match in zip(variant["shapes"], matches, strict=True):
            row["relative"][name] = _clips_ratio(row, other["shapes"][match])
        variant["totals"]["relative"][name] = _ratio(variant["totals"], other["totals"])


def _clips_ratio(row: Row, other: Row) -> dict[str, Any] | None:
    """How many times another's clips a second a row has."""
    ratio = _ratio(row, other)
    if ratio is None:
        return None
    clips = row["local_clips"] / other["local_clips"]
    return quartiles([clips * each for each in ratio["rounds"]])


def _ratio(found: Row, other: Row) -> dict[str, Any] | None:
    """Another's seconds as a multiple of these, round by round; None where there are none."""
    if found.get("seconds") is None or other.get("seconds") is None:
        return None
    pairs = zip(other["seconds"]["rounds"], found["seconds"]["rounds"], strict=True)
    return quartiles([b / a for b, a in pairs])


Place = tuple[Shape, bool]
"""A shape, and whether its BN is left to the batch, as the baseline's is."""


def matching_rows(recipe: Recipe, other: Recipe) -> list[int]:
    """For each shape to measure of a recipe, the number of the one that another has in its place.

    They differ where MULTIGRID.SIZE_DIVISOR rounds the crops of one of them.
    """
    mine, theirs = _places(recipe), _places(other)
    found = {mine[0]: 0}
    for own_phase, other_phase in zip(_phases(recipe), _phases(other), strict=True):
        for own, match in zip(own_phase, other_phase, strict=True):
            found.setdefault(own, theirs.index(match))
    return [found[place] for place in mine]


def _places(recipe: Recipe) -> list[Place]:
    return [(shape, size is None) for shape, size in shapes_to_measure(recipe)]


def _phases(recipe: Recipe) -> list[list[Place]]:
    """The shapes of each phase, in the short cycle's order."""
    return [
        [(shape, size is None) for shape, size in zip(phase.shapes, phase.bn_sizes, strict=True)]
        for phase in schedule_of(recipe, MANY_VIDEOS).phases
    ]


def totals(recipe: Recipe, rows: Sequence[Row], num_videos: int | None) -> dict[str, Any]:
    """Seconds of the whole schedule, and of the same recipe without multigrid.

    The medians are of the shapes' medians, as in tools/plan.py; the rest is round by round.

    Args:
        recipe: the recipe as it was measured.
        rows: its shapes, in the order of `shapes_to_measure`.
        num_videos: of the training set; where it is not known, "seconds" are of a training of 10
            million videos, of which only ratios mean something.

    Returns:
        "seconds", "baseline_seconds" and "speed_up" with quartiles, or "failure" where a shape has
        no time.
    """
    missing = [str(Shape(*row["shape"])) for row in rows if row["seconds"] is None]
    if missing:
        return {"failure": f"no time for {', '.join(dict.fromkeys(missing))}"}
    schedule = schedule_of(recipe, num_videos or MANY_VIDEOS)
    grouped, found = recipe.groups_batchnorm, list[tuple[float, float, float]]()
    medians = [row["seconds"]["median"] for row in rows]
    for seconds in [medians, *zip(*(row["seconds"]["rounds"] for row in rows), strict=True)]:
        times = dict(zip(_places(recipe), seconds, strict=True))
        ours = _seconds(schedule_cost, schedule, times, not grouped)
        baseline = _seconds(baseline_cost, schedule, times, True)
        found.append((ours, baseline, baseline / ours))
    return {
        name: quartiles(rounds) | {"median": median}
        for name, (median, *rounds) in zip(_TOTALS, zip(*found, strict=True), strict=True)
    }


_TOTALS = ("seconds", "baseline_seconds", "speed_up")


def _seconds(
    cost: Callable[..., Cost], schedule: Schedule, times: Mapping[Place, float], of_batch: bool
) -> float:
    """Of a training, whose BN is left to the batch or not."""
    seconds = cost(schedule, None, lambda shape: times[shape, of_batch]).seconds
    assert seconds is not None
    return seconds


def recommend(variants: Sequence[Row]) -> list[str] | None:
    """KEY VALUE ... of the switches that are worth turning on; None where that was not measured.

    Those with which the whole schedule is faster than without any, by more than the spread: the
    first quartile of the ratio is above 1.
    """
    ratios = {
        variant["name"]: ratio
        for variant in variants
        if (ratio := variant["totals"]["relative"].get("plain")) is not None
    }
    tried = [name for name in SWITCHES if name in ratios]
    if not tried:
        return None
    pairs = [SWITCHES[name] for name in tried if ratios[name]["quartile_1"] > 1]
    return [str(item) for pair in pairs for item in pair]
