"""Measure the variants of a recipe at each shape, and derive rates and ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from multigrid.cost import FlopsPerClip
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.plan.flops import check_shapes, flops_per_clip
from slowfast_patches.plan.recipe_times import shapes_to_measure
from slowfast_patches.plan.step_times import step_times_content, time_row
from slowfast_patches.plan.training_plan import dataset_size
from steps.case import Case, prepare_device, time_in_turns
from steps.rates import (
    REFERENCES,
    Row,
    add_rates,
    add_relative,
    matrix_rates,
    recommend,
    totals,
)
from steps.step_variants import EACH, HOST, Variant, build_variants


def measure(
    recipe: Recipe,
    names: Sequence[str],
    rounds: int,
    seconds: float,
    *,
    num_videos: int | None = None,
) -> dict[str, Any]:
    """Measure the time of a step at each shape in each variant, and derive rates and ratios.

    Args:
        recipe: The recipe to measure.
        names: Names of variants. "each" stands for all variants except "recipe".
        rounds: Number of rounds.
        seconds: Approximate time in seconds for all rounds of one shape in one variant.
        num_videos: Number of training videos. By default taken from the recipe.

    Returns:
        The result as plain data: the step times of the recipe (`step_times_content`), and the
        variants. For a variant that is not supported, "failure" is the reason.

    Raises:
        ValueError: The model does not support a shape, or no variant is supported.
    """
    chosen = dict.fromkeys(n for name in names for n in (EACH if name == "each" else [name]))
    check_shapes(recipe, [shape for shape, _ in shapes_to_measure(recipe)])
    device = prepare_device(recipe)
    variants = build_variants(recipe, list(chosen), device)
    measured = [variant for variant in variants if variant.failure is None]
    if not measured:
        raise ValueError("; ".join(f"--variants {v.name}: {v.failure}" for v in variants))
    rates = matrix_rates(recipe, device, [variant.precision for variant in measured])
    cases = [case for variant in measured for case in variant.cases]
    time_in_turns(cases, rounds, seconds)
    flops = flops_per_clip(recipe)
    try:
        videos = dataset_size(recipe, num_videos)
    except ValueError:
        videos = None
    rows = [_variant_row(variant, rates, flops, videos) for variant in variants]
    for name in REFERENCES:
        add_relative(name, rows)
    own = next((row for row in rows if row["name"] == "recipe"), None)
    return {
        **step_times_content(recipe, device, own["shapes"] if own else []),
        "precision": own["precision"] if own else None,
        "processes": recipe.world_size,
        "matrix_rates": rates,
        "num_videos": videos,
        "variants": rows,
        "recommended": recommend(rows),
    }


def _variant_row(
    variant: Variant, rates: Mapping[str, float], flops: FlopsPerClip, num_videos: int | None
) -> Row:
    """Return the results of a variant for each shape and for the whole schedule."""
    shapes = [_shape_row(variant, case) for case in variant.cases]
    row: Row = {
        "name": variant.name,
        "keys": dict(variant.keys),
        "failure": variant.failure,
        "shapes": shapes,
    }
    if variant.failure is not None:
        return row | {"precision": None, "totals": {"failure": variant.failure}}
    for shape in shapes:
        add_rates(shape, flops, rates[variant.precision])
    whole = totals(variant.recipe, shapes, num_videos)
    return row | {"precision": variant.precision, "totals": whole}


def _shape_row(variant: Variant, case: Case) -> Row:
    bn_group_size = None if variant.name in HOST else case.bn_group_size
    measured = case.to_json()
    return time_row(variant.recipe, case.shape, bn_group_size, measured.pop("seconds")) | measured
