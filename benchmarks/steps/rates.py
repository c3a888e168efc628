"""What follows from measured steps: rates, shares, ratios, hours, and which switches pay."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from common import quartiles, ratios, seconds_of

from multigrid import Shape, baseline_cost, schedule_cost
from multigrid.cost import FlopsPerClip
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import schedule_of
from slowfast_patches.launch.device import set_up_device
from slowfast_patches.plan.step_times import MANY_VIDEOS
from steps.variants import SWITCHES

__all__ = ["REFERENCES", "Row", "add_rates", "add_relative", "matrix_rates", "recommend", "totals"]

REFERENCES = ("plain", "host")
"""Variants that the others are relative to."""

Row = dict[str, Any]
"""What is known of a shape: "shape" (of all processes), "local_clips", "bn_size", "seconds" with
quartiles and rounds, None beside a "failure"."""

_SIDES = {"cuda": 8192, "cpu": 512}
_SECONDS = 0.25
_TYPES = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def matrix_rates(recipe: Recipe, device: torch.device, names: Iterable[str]) -> dict[str, float]:
    """FLOP/s of square matrix products in some precisions, a multiply-add counted as two.

    The matrices are random: of zeros, a GPU that draws less current computes faster. The rate is
    the median of some time, after as much that does not count.

    Args:
        recipe: any recipe for the device; its TRAIN.TF32 is set as each precision needs it.
        names: of "float32", "tf32", "bfloat16" and "float16".
    """
    rates = dict[str, float]()
    side = _SIDES[device.type]
    for name in sorted(set(names)):
        set_up_device(recipe.replaced({"TRAIN.TF32": name == "tf32"}))
        a, b = (torch.randn(side, side, device=device).to(_TYPES[name]) for _ in range(2))

        def product(a: torch.Tensor = a, b: torch.Tensor = b) -> float:
            return seconds_of(lambda: torch.mm(a, b), device)

        product()
        count = max(3, int(_SECONDS / product()))
        took = [product() for _ in range(2 * count)]
        rates[name] = 2 * side**3 / statistics.median(took[count:])
    return rates


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
    flops = flops_per_clip(frames, crop)
    of_a_clip = {
        "clips_per_second": 1,
        "pixels_per_second": frames * crop**2,
        "flops_per_second": flops,
        "matrix_share": flops / matrix_rate,
    }
    for name, amount in of_a_clip.items():
        row[name] = quartiles([row["local_clips"] * amount / s for s in row["seconds"]["rounds"]])
        del row[name]["rounds"]  # they stay with what was measured


def add_relative(name: str, variants: Sequence[Row]) -> None:
    """Put the ratios to one variant beside the times of the others, where it is measured.

    A shape has how many times the clips a second it has, the whole schedule how many times shorter
    it is. Shapes stand in the order of the schedule: those of MULTIGRID.SIZE_DIVISOR are beside
    those that they take the place of, unless it makes two of them one.

    Args:
        name: the variant that the others are relative to.
        variants: with "name", "shapes" and "totals", in each of which "relative" gets the ratio.
    """
    other = next((v for v in variants if v["name"] == name and v["shapes"]), None)
    for variant in variants:
        rows = variant["shapes"]
        for row in [*rows, variant["totals"]]:
            row.setdefault("relative", {})
        if other is None or other is variant or len(rows) != len(other["shapes"]):
            continue
        for row, reference in zip(rows, other["shapes"], strict=True):
            clips = row["local_clips"] / reference["local_clips"]
            row["relative"][name] = _ratio(row, reference, clips)
        variant["totals"]["relative"][name] = _ratio(variant["totals"], other["totals"])


def _ratio(row: Row, other: Row, factor: float = 1.0) -> Row | None:
    """Another's seconds as a multiple of these, round by round; None where there are none."""
    if row.get("seconds") is None or other.get("seconds") is None:
        return None
    return ratios([factor * s for s in other["seconds"]["rounds"]], row["seconds"]["rounds"])


def totals(recipe: Recipe, rows: Sequence[Row], num_videos: int | None) -> Row:
    """Seconds of the whole schedule, and of the same recipe without multigrid.

    The medians are of the shapes' medians, as in multigrid-plan; the rest is round by round.

    Args:
        recipe: the recipe as it was measured.
        rows: its shapes, the baseline's with the baseline's BN first.
        num_videos: of the training set; where it is not known, "seconds" are of a training of 10
            million videos, of which only ratios mean something.

    Returns:
        "seconds", "baseline_seconds" and "speed_up" with quartiles, or "failure" where a shape has
        no time.
    """
    shapes = [Shape(*row["shape"]) for row in rows]
    missing = [s for s, row in zip(shapes, rows, strict=True) if row["seconds"] is None]
    if missing:
        return {"failure": f"no time for {', '.join(map(str, dict.fromkeys(missing)))}"}
    schedule = schedule_of(recipe, num_videos or MANY_VIDEOS)
    sums = list[tuple[float, ...]]()
    medians = [row["seconds"]["median"] for row in rows]
    for seconds in [medians, *zip(*(row["seconds"]["rounds"] for row in rows), strict=True)]:
        times = dict(zip(shapes, seconds, strict=True))  # the first, where it comes again, is lost
        ours = schedule_cost(schedule, None, times.__getitem__).seconds
        baseline = baseline_cost(schedule, None, {shapes[0]: seconds[0]}.__getitem__).seconds
        assert ours is not None
        assert baseline is not None
        sums.append((ours, baseline, baseline / ours))
    names = ("seconds", "baseline_seconds", "speed_up")
    return {
        name: quartiles(rounds) | {"median": median}
        for name, (median, *rounds) in zip(names, zip(*sums, strict=True), strict=True)
    }


def recommend(variants: Sequence[Row]) -> list[str] | None:
    """KEY VALUE ... of the switches that are worth turning on; None where that was not measured.

    Those with which the whole schedule is faster than without any, by more than the spread: the
    first quartile of the ratio is above 1.
    """
    to_plain = {v["name"]: v["totals"]["relative"].get("plain") for v in variants}
    tried = {key: ratio for name, key in SWITCHES.items() if (ratio := to_plain.get(name))}
    if not tried:
        return None
    return [
        word for key, ratio in tried.items() if ratio["quartile_1"] > 1 for word in (key, "True")
    ]
