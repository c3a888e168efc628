"""A recipe measured: its variants, shape by shape, and what follows from their times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from step_bench import (
    Case,
    build_training_model,
    prepare_device,
    provenance,
    time_in_turns,
)
from step_columns import REFERENCES, Row, add_rates, add_relative, recommend, totals
from step_fast import build_fast_pathway, fast_flops_per_clip
from step_profile import find_case, parse_profile, profile_case
from step_rates import matrix_rates
from step_variants import HOST, Run, build_runs

from multigrid.cost import FlopsPerClip
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.launch.launch import processes_of
from slowfast_patches.models.flops import check_shapes, flops_per_clip
from slowfast_patches.plan.plan import dataset_size
from slowfast_patches.plan.step_times import FORMAT, model_of, shapes_to_measure

__all__ = ["Request", "derive", "measure"]


@dataclass(frozen=True)
class Request:
    """What is measured of a recipe.

    variants: names, of step_variants.NAMES.
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
    runs = build_runs(recipe, request.variants, device, named=request.named, build=build)
    profiled = request.profile and parse_profile(request.profile, runs)
    measured = [run for run in runs if run.failure is None]
    rates = matrix_rates(recipe, device, [run.precision for run in measured])
    cases = [case for run in measured for case in run.cases]
    time_in_turns(cases, request.rounds, request.seconds)
    rows = [[_row(run, case) for case in run.cases] for run in runs]
    flops = (fast_flops_per_clip if request.fast else flops_per_clip)(recipe)
    result = {
        "format": FORMAT,
        "precision": next((run.precision for run in measured if run.name == "recipe"), None),
        "processes": processes_of(recipe),
        **provenance(device),
        "model": model_of(recipe),
        "pathway": "fast" if request.fast else "all",
        "matrix_rates": rates,
        **derive(recipe, runs, rows, rates, flops, request.num_videos),
    }
    if profiled:
        run, shape = profiled
        case = find_case(run, rows[runs.index(run)], shape)
        result["profile"] = profile_case(run.name, case)
    return result


def derive(
    recipe: Recipe,
    runs: Sequence[Run],
    rows: Sequence[Sequence[Row]],
    rates: Mapping[str, float],
    flops: FlopsPerClip,
    num_videos: int | None,
) -> dict[str, Any]:
    """What follows from the times: rates and ratios in the rows, the whole schedule, the switches.

    Args:
        rows: of each run, with the seconds of each of its shapes.
        rates: FLOP/s of matrix products in the precision of each run.
        flops: training FLOPs of a clip of (frames, crop).
        num_videos: of the training set, None for what the recipe says.
    """
    videos, no_videos = _videos(recipe, num_videos)
    variants = list[dict[str, Any]]()
    for run, own in zip(runs, rows, strict=True):
        for row in own:
            add_rates(row, flops, rates[run.precision])
        variants.append(_variant(run, own, videos))
    for name in REFERENCES:
        add_relative(name, [run.recipe for run in runs], variants)
    return {
        "num_videos": videos,
        "no_videos": no_videos,
        "variants": variants,
        "recommended": recommend(variants),
    }


def _variant(run: Run, rows: Sequence[Row], num_videos: int | None) -> dict[str, Any]:
    found = {"name": run.name, "keys": dict(run.keys), "failure": run.failure, "shapes": rows}
    if run.failure is not None:
        return found | {"precision": None, "totals": {"failure": run.failure}}
    return found | {"precision": run.precision, "totals": totals(run.recipe, rows, num_videos)}


def _videos(recipe: Recipe, given: int | None) -> tuple[int | None, str | None]:
    """Training videos, or why they are not known."""
    try:
        return dataset_size(recipe, given), None
    except ValueError as error:
        return None, str(error)


def _row(run: Run, case: Case) -> Row:
    return {
        "shape": [case.shape.batch, case.shape.frames, case.shape.crop],
        "local_clips": case.clips,
        "bn_size": None if run.name in HOST else case.bn_size,
        **case.to_json(),
    }
