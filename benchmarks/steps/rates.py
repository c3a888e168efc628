"""Derive rates, ratios, times of schedules and recommended switches from step times."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from common import quartiles, ratios, seconds_of

from multigrid import Shape, baseline_cost, schedule_cost
from multigrid.cost import FlopsPerClip
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.launch.device import set_up_device
from slowfast_patches.plan.recipe_schedule import schedule_of
from slowfast_patches.plan.recipe_times import MANY_VIDEOS
from steps.step_variants import SWITCHES

REFERENCES = ("plain", "host")
"""Names of the variants with which all other variants are compared."""

Row = dict[str, Any]
"""Results for one shape, or for one variant, as plain data.

For a shape, the keys are: "shape" (batch, frames, crop) with the global batch size, "local_clips"
(clips per process), "bn_group_size" (clips per BN group), and "seconds" (quartiles and rounds). If
the measurement has failed, "seconds" is None and "failure" is the reason.
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
    """Measure the speed of square matrix products in FLOP/s. A multiply-add counts as two FLOPs.

    The matrices are random, because a GPU draws less power on zeros and would compute faster. The
    speed is the median of several products, after a warm-up that takes about as long.

    Args:
        recipe: Any recipe for the device. TRAIN.TF32 is overridden for each precision.
        device: The device to measure.
        names: The precisions: "float32", "tf32", "bfloat16" or "float16".

    Returns:
        A dict from precision to FLOP/s.
    """
    rates = dict[str, float]()
    side = _SIDES[device.type]
    for name in sorted(set(names)):
        set_up_device(recipe.replaced({"TRAIN.TF32": name == "tf32"}))
        a, b = (torch.randn(side, side, device=device).to(_TYPES[name]) for _ in range(2))
        product = partial(seconds_of, partial(torch.mm, a, b), device)
        product()
        count = max(3, int(_SECONDS / product()))
        took = [product() for _ in range(2 * count)]
        rates[name] = 2 * side**3 / statistics.median(took[count:])
    return rates


def add_rates(row: Row, flops_per_clip: FlopsPerClip, matrix_rate: float) -> None:
    """Add clips and FLOPs per second to the results of a shape, in place.

    Args:
        row: Results with "shape", "local_clips" and "seconds". If "seconds" is None, nothing is
            added.
        flops_per_clip: Function (frames, crop) that returns the training FLOPs of one clip.
        matrix_rate: Speed of matrix products on the device in FLOP/s.
    """
    if row["seconds"] is None:
        return
    _, frames, crop = row["shape"]
    flops = flops_per_clip(frames, crop)
    per_clip = {
        "clips_per_second": 1,
        "flops_per_second": flops,
        "matrix_share": flops / matrix_rate,
    }
    for name, amount in per_clip.items():
        row[name] = quartiles([row["local_clips"] * amount / s for s in row["seconds"]["rounds"]])
        del row[name]["rounds"]  # they follow from those of "seconds"


def add_relative(name: str, variants: Sequence[Row]) -> None:
    """Add the speed of each variant relative to a reference variant, in place.

    The relative speed at a shape is the ratio of clips per second. For the whole schedule, it is
    the time of the reference divided by the time of the variant. Shapes are matched by their order
    in the schedule, so that a shape changed by MULTIGRID.SIZE_DIVISOR is compared with the original
    shape. Variants with another number of shapes than the reference get no ratios. If the reference
    was not measured, no ratios are added.

    Args:
        name: Name of the reference variant.
        variants: Results with "name", "shapes" and "totals". The ratios are added to the dict
            "relative" of each shape and of the totals.
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
    """Return `factor` × the seconds of `other`, divided by the seconds of `row`.

    Return None if either row has no seconds.
    """
    if row.get("seconds") is None or other.get("seconds") is None:
        return None
    return ratios([factor * s for s in other["seconds"]["rounds"]], row["seconds"]["rounds"])


def totals(recipe: Recipe, rows: Sequence[Row], num_videos: int | None) -> Row:
    """Compute the training time of the whole schedule, and of the baseline without multigrid.

    Medians and quartiles are those of the results of single rounds, so that all shapes of a result
    were measured under the same load.

    Args:
        recipe: The recipe as measured.
        rows: Results for the shapes of the recipe. The first row is the shape of the baseline with
            the BN of the baseline.
        num_videos: Number of training videos. If None, the times are those for 10 million videos,
            so only their ratio is meaningful.

    Returns:
        A dict with "seconds", "baseline_seconds" and "speed_up", each with quartiles. If the time
        of a shape is missing, a dict with "failure".
    """
    shapes = [Shape(*row["shape"]) for row in rows]
    missing = [s for s, row in zip(shapes, rows, strict=True) if row["seconds"] is None]
    if missing:
        return {"failure": f"no time for {', '.join(map(str, dict.fromkeys(missing)))}"}
    schedule = schedule_of(recipe, num_videos or MANY_VIDEOS)
    sums = list[tuple[float, ...]]()
    for seconds in zip(*(row["seconds"]["rounds"] for row in rows), strict=True):
        # If the baseline's shape occurs twice, `dict` keeps the last one, with the BN of multigrid.
        times = dict(zip(shapes, seconds, strict=True))
        ours = schedule_cost(schedule, None, times.__getitem__).seconds
        baseline = baseline_cost(schedule, None, {shapes[0]: seconds[0]}.__getitem__).seconds
        assert ours is not None
        assert baseline is not None
        sums.append((ours, baseline, baseline / ours))
    names = ("seconds", "baseline_seconds", "speed_up")
    columns = zip(*sums, strict=True)
    return {name: quartiles(rounds) for name, rounds in zip(names, columns, strict=True)}


def recommend(variants: Sequence[Row]) -> list[str] | None:
    """Recommend the switches that make the whole schedule faster.

    A switch is recommended if the first quartile of its speed relative to `plain` is above 1.

    Returns:
        Config keys, each followed by "True". None if no switch was measured.
    """
    to_plain = {v["name"]: v["totals"]["relative"].get("plain") for v in variants}
    tried = {key: ratio for name, key in SWITCHES.items() if (ratio := to_plain.get(name))}
    if not tried:
        return None
    return [
        word for key, ratio in tried.items() if ratio["quartile_1"] > 1 for word in (key, "True")
    ]
