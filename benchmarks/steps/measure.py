"""A recipe measured: its variants, shape by shape, and what follows from their times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from common import provenance

from multigrid.cost import FlopsPerClip
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.launch.launch import processes_of
from slowfast_patches.models.flops import check_shapes, flops_per_clip
from slowfast_patches.plan.plan import dataset_size
from slowfast_patches.plan.step_times import FORMAT, model_of, shapes_to_measure
from steps.case import Case, build_training_model, prepare_device, time_in_turns
from steps.fast import build_fast_pathway, fast_flops_per_clip
from steps.profiling import find_case, parse_profile, profile_case
from steps.rates import (
    REFERENCES,
    Row,
    add_rates,
    add_relative,
    matrix_rates,
    recommend,
    totals,
)
from steps.variants import HOST, Variant, build_variants

__all__ = ["Request", "measure"]


@dataclass(frozen=True)
class Request:
    """What is measured of a recipe.

    variants: names, of variants.NAMES.
    named: those that were asked for by name: where the device cannot have one, it is refused;
        others are reported.
    fast: the fast pathway alone.
    profile: "[VARIANT:]SHAPE", None for no profile.
    num_videos: of the training set; None for what the recipe says.
    """

    rounds: int
    seconds: float
    variants: tuple[str, ...] = ("recipe",)
    named: frozenset[str] = frozenset()
    fast: bool = False
    profile: str | None = None
    num_videos: int | None = None


def measure(recipe: Recipe, request: Request) -> dict[str, Any]:
    """The times of each shape in each variant, and what follows from them.

    Raises:
        ValueError: the model cannot take a shape, the device a variant, or --profile names none.
    """
    check_shapes(recipe, [shape for shape, _ in shapes_to_measure(recipe)])
    device = prepare_device(recipe)
    build = build_fast_pathway if request.fast else build_training_model
    names, named = request.variants, request.named
    variants = build_variants(recipe, names, device, named=named, build=build)
    profiled = request.profile and parse_profile(request.profile, variants)
    measured = [variant for variant in variants if variant.failure is None]
    rates = matrix_rates(recipe, device, [variant.precision for variant in measured])
    cases = [case for variant in measured for case in variant.cases]
    time_in_turns(cases, request.rounds, request.seconds)
    flops = (fast_flops_per_clip if request.fast else flops_per_clip)(recipe)
    videos, no_videos = _videos(recipe, request.num_videos)
    rows = [_variant_row(variant, rates, flops, videos) for variant in variants]
    for name in REFERENCES:
        add_relative(name, rows)
    result = {
        "format": FORMAT,
        "precision": next((row["precision"] for row in rows if row["name"] == "recipe"), None),
        "processes": processes_of(recipe),
        **provenance(device),
        "model": model_of(recipe),
        "pathway": "fast" if request.fast else "all",
        "matrix_rates": rates,
        "num_videos": videos,
        "no_videos": no_videos,
        "variants": rows,
        "recommended": recommend(rows),
    }
    if profiled:
        variant, shape = profiled
        case = find_case(variant, rows[variants.index(variant)]["shapes"], shape)
        result["profile"] = profile_case(variant.name, case)
    return result


def _variant_row(
    variant: Variant, rates: Mapping[str, float], flops: FlopsPerClip, num_videos: int | None
) -> Row:
    """What is known of a variant: that of its shapes, and of the whole schedule."""
    shapes = [_shape_row(variant, case) for case in variant.cases]
    found: Row = {"name": variant.name, "keys": dict(variant.keys), "failure": variant.failure}
    found["shapes"] = shapes
    if variant.failure is not None:
        return found | {"precision": None, "totals": {"failure": variant.failure}}
    for row in shapes:
        add_rates(row, flops, rates[variant.precision])
    whole = totals(variant.recipe, shapes, num_videos)
    return found | {"precision": variant.precision, "totals": whole}


def _shape_row(variant: Variant, case: Case) -> Row:
    return {
        "shape": [case.shape.batch, case.shape.frames, case.shape.crop],
        "local_clips": case.clips,
        "bn_size": None if variant.name in HOST else case.bn_size,
        **case.to_json(),
    }


def _videos(recipe: Recipe, given: int | None) -> tuple[int | None, str | None]:
    """Training videos, or why they are not known."""
    try:
        return dataset_size(recipe, given), None
    except ValueError as error:
        return None, str(error)
