"""Results derived from step times: rates, ratios, times of schedules, recommended switches."""

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

REFERENCES = ("plain", "host")
"""Variants to which the others are compared."""

Row = dict[str, Any]
"""Results of a shape, by name.

"shape" is that of all processes. "local_clips" and "bn_size" are numbers of clips. "seconds" has
quartiles and rounds, or is None beside a "failure".
"""

_SIDES = {"cuda": 8192, "cpu": 512}
_SECONDS = 0.25
_TYPES = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def matrix_rates(recipe: Recipe, device: torch.device, names: Iterable[str]) -> dict[str, float]:
    """Measure the FLOP/s of square matrix products, with a multiply-add counted as two.

    The matrices are random, because a GPU draws less power on zeros and computes faster. The rate
    is the median over some time, after a warm-up of the same length.

    Args:
        recipe: any recipe for the device. Its TRAIN.TF32 is set as each precision requires.
        device: the device to measure.
        names: precisions: "float32", "tf32", "bfloat16" or "float16".

    Returns:
        The rate of each precision.
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
    """Add clips, pixels and FLOPs per second to the results of a shape.

    Args:
        row: results with "shape", "local_clips" and "seconds". If "seconds" is None, nothing is
            added.
        flops_per_clip: returns the training FLOPs of a clip of (frames, crop).
        matrix_rate: the device's rate of matrix products, in FLOP/s.
    """
    if row["seconds"] is None:
        return
    _, frames, crop = row["shape"]
    flops = flops_per_clip(frames, crop)
    per_clip = {
        "clips_per_second": 1,
        "pixels_per_second": frames * crop**2,
        "flops_per_second": flops,
        "matrix_share": flops / matrix_rate,
    }
    for name, amount in per_clip.items():
        row[name] = quartiles([row["local_clips"] * amount / s for s in row["seconds"]["rounds"]])
        del row[name]["rounds"]  # they follow from those of "seconds"


def add_relative(name: str, variants: Sequence[Row]) -> None:
    """Add the speeds of all variants relative to one of them, if that was measured.

    For a shape it is the ratio of clips per second, for the whole schedule the inverse ratio of
    times. Shapes are matched by their order in the schedule. With MULTIGRID.SIZE_DIVISOR, a shape
    is thus compared with the one it replaces. A variant with another number of shapes gets no
    ratios.

    Args:
        name: the reference variant.
        variants: results with "name", "shapes" and "totals". The ratio is added to "relative" of
            each shape and of the totals.
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
    """Return the ratio of another row's seconds to this row's, or None if either has none."""
    if row.get("seconds") is None or other.get("seconds") is None:
        return None
    return ratios([factor * s for s in other["seconds"]["rounds"]], row["seconds"]["rounds"])


def totals(recipe: Recipe, rows: Sequence[Row], num_videos: int | None) -> Row:
    """Compute the seconds of the whole schedule and of the same recipe without multigrid.

    Medians are computed from the medians of the shapes, as in multigrid-plan. Quartiles are
    computed from the rounds.

    Args:
        recipe: the recipe as measured.
        rows: results of its shapes. The first is the baseline's shape with the baseline's BN.
        num_videos: videos in the training set. If None, times are those of 10 million videos, and
            only their ratios are meaningful.

    Returns:
        "seconds", "baseline_seconds" and "speed_up" with quartiles, or "failure" if a shape has no
        time.
    """
    shapes = [Shape(*row["shape"]) for row in rows]
    missing = [s for s, row in zip(shapes, rows, strict=True) if row["seconds"] is None]
    if missing:
        return {"failure": f"no time for {', '.join(map(str, dict.fromkeys(missing)))}"}
    schedule = schedule_of(recipe, num_videos or MANY_VIDEOS)
    sums = list[tuple[float, ...]]()
    medians = [row["seconds"]["median"] for row in rows]
    for seconds in [medians, *zip(*(row["seconds"]["rounds"] for row in rows), strict=True)]:
        # If the baseline's shape occurs twice, the schedule takes the one with the schedule's BN.
        times = dict(zip(shapes, seconds, strict=True))
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
    """Recommend the switches that speed up the whole schedule by more than the spread.

    The first quartile of the speed relative to `plain` must be above 1.

    Returns:
        KEY VALUE pairs, or None if no switch was measured.
    """
    to_plain = {v["name"]: v["totals"]["relative"].get("plain") for v in variants}
    tried = {key: ratio for name, key in SWITCHES.items() if (ratio := to_plain.get(name))}
    if not tried:
        return None
    return [
        word for key, ratio in tried.items() if ratio["quartile_1"] > 1 for word in (key, "True")
    ]
