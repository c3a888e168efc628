"""A recipe measured: its variants, shape by shape, and what follows from their times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fvcore.common.config import CfgNode
from step_bench import (
    Case,
    build_training_model,
    prepare_device,
    provenance,
    time_in_turns,
)
from step_columns import REFERENCES, add_rates, add_relative, recommend, totals
from step_fast import build_fast_pathway, fast_flops_per_clip
from step_profile import find_case, profile_case
from step_rates import matrix_rates
from step_variants import HOST, Run, build_runs

from slowfast_patches.engine.launch import processes_of
from slowfast_patches.engine.plan import dataset_size
from slowfast_patches.engine.step_times import FORMAT, model_of, shapes_to_measure
from slowfast_patches.models.flops import check_shapes, flops_per_clip

__all__ = ["Request", "measure"]


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


def measure(cfg: CfgNode, request: Request) -> dict[str, Any]:
    """The times of each shape in each variant, and what follows from them.

    Raises:
        ValueError: the model cannot take a shape, or the device a variant.
    """
    shapes = shapes_to_measure(cfg)
    check_shapes(cfg, [shape for shape, _ in shapes])
    device = prepare_device(cfg)
    build = build_fast_pathway if request.fast else build_training_model
    runs = build_runs(cfg, request.variants, device, named=request.named, build=build)
    measured = [run for run in runs if run.failure is None]
    rates = matrix_rates(cfg, device, [run.rate_name for run in measured])
    cases = [case for run in measured for case in run.cases]
    time_in_turns(cases, request.rounds, request.seconds)
    result = {
        "format": FORMAT,
        "precision": next((run.cases[0].bench.precision_name() for run in measured), None),
        "processes": processes_of(cfg),
        **provenance(device),
        "model": model_of(cfg),
        "pathway": "fast" if request.fast else "all",
        "matrix_rates": rates,
    }
    return result | _derive(cfg, runs, rates, request)


def _derive(
    cfg: CfgNode, runs: Sequence[Run], rates: dict[str, float], request: Request
) -> dict[str, Any]:
    """What the columns say, of rows that are there."""
    flops = (fast_flops_per_clip if request.fast else flops_per_clip)(cfg)
    rows = [[_row(run, case) for case in run.cases] for run in runs]
    for run, own in zip(runs, rows, strict=True):
        for row in own:
            add_rates(row, flops, rates[run.rate_name])
    num_videos, no_videos = _videos(cfg, request.num_videos)
    variants = [
        {
            "name": run.name,
            "keys": dict(run.keys),
            "failure": run.failure,
            "shapes": own,
            "totals": {"failure": run.failure} if run.failure else totals(run.cfg, own, num_videos),
        }
        for run, own in zip(runs, rows, strict=True)
    ]
    for name in REFERENCES:
        add_relative(name, [run.cfg for run in runs], variants)
    found: dict[str, Any] = {
        "num_videos": num_videos,
        "no_videos": no_videos,
        "variants": variants,
        "recommended": recommend(variants),
    }
    if request.profile is not None:
        run, number = find_case(runs, rows, request.profile)
        found["profile"] = profile_case(run.name, run.cases[number])
    return found


def _videos(cfg: CfgNode, given: int | None) -> tuple[int | None, str | None]:
    """Training videos, or why they are not known."""
    try:
        return dataset_size(cfg, given), None
    except ValueError as error:
        return None, str(error)


def _row(run: Run, case: Case) -> dict[str, Any]:
    return {
        "shape": [case.shape.batch, case.shape.frames, case.shape.crop],
        "local_clips": case.clips,
        "bn_size": None if run.name in HOST else case.bn_size,
        **case.to_json(),
    }
