"""Models side by side: what a training step of each costs with the same number of clips."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import provenance, quartiles, ratios, spread_text

from multigrid import Shape
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.launch.launch import processes_of
from slowfast_patches.models.flops import check_shapes, flops_per_clip
from slowfast_patches.utils.tables import format_table
from steps.case import Bench, Case, prepare_device, time_in_turns

__all__ = ["baseline_shape", "format_models", "measure_models"]

Named = tuple[str, Recipe]
"""A recipe's file, or name, and what it says."""


def measure_models(
    recipes: Sequence[Named], clips: int, rounds: int, seconds: float
) -> dict[str, Any]:
    """The time of a step of each recipe at its baseline's shape, and what the step consists of.

    Args:
        recipes: for one kind of device.
        clips: those of one process, of every recipe.
        rounds: in each of them every recipe has its turn.
        seconds: of each recipe over all rounds, about.

    Raises:
        ValueError: a model cannot take its shape.
    """
    for _, recipe in recipes:
        check_shapes(recipe, [baseline_shape(recipe, clips)])
    device = prepare_device(recipes[0][1])
    cases = [Case(Bench(r, device), baseline_shape(r, clips), None) for _, r in recipes]
    time_in_turns(cases, rounds, seconds)
    rows = [_row(path, case) for (path, _), case in zip(recipes, cases, strict=True)]
    first = rows[0]["seconds"]
    for row in rows:
        both = first and row["seconds"]
        relative = ratios(first["rounds"], row["seconds"]["rounds"]) if both else None
        row["relative_clips_per_second"] = relative
    return provenance(device) | {"clips": clips, "models": rows}


def baseline_shape(recipe: Recipe, clips: int) -> Shape:
    """The baseline's, with `clips` clips a process."""
    base = recipe.base_shape
    return Shape(clips * processes_of(recipe), base.frames, base.crop)


def _row(path: str, case: Case) -> dict[str, Any]:
    recipe, shape, bench = case.bench.recipe, case.shape, case.bench
    training = flops_per_clip(recipe)(shape.frames, shape.crop)
    parameters = list(bench.trained(case.step)[0].parameters())
    timed = case.to_json()
    spread = timed["seconds"]
    return {
        "recipe": Path(path).stem,
        "file": path,
        "model": recipe.model.arch,
        "frames": shape.frames,
        "crop": shape.crop,
        "local_clips": case.clips,
        "processes": processes_of(recipe),
        "precision": bench.precision_name(),
        "parameters": sum(p.numel() for p in parameters),
        "training_flops_per_clip": training,
        "multiply_adds_per_clip": training / 6,  # of a forward, each two operations
        "gradient_bytes": sum(p.numel() * p.element_size() for p in parameters),
        **timed,
        "clips_per_second": spread and quartiles([case.clips / took for took in spread["rounds"]]),
    }


_HEADERS = ["recipe", "model", "frames × crop²", "precision", "clips\nhere", "parameters,\nM"]
_HEADERS += ["multiply-adds\na clip, G", "gradients\na step, MB", "s per step", "clips/s"]
_HEADERS += ["relative\nclips/s"]


def format_models(result: dict[str, Any]) -> str:
    """A table of the models, and what they were measured on."""
    return (
        f"{format_table(_HEADERS, [_cells(row) for row in result['models']], left=4)}\n\n"
        f"{result['device']['name']}, {result['machine']['threads']} CPU threads; relative to "
        f"{result['models'][0]['recipe']} in the same round.\n"
        "Multiply-adds are the forward's; training takes three times as many, and a multiply-add "
        "is two FLOPs.\nGradients are what a process of several puts into the sum over all; "
        "neither the sum nor loading is in the times."
    )


def _cells(row: dict[str, Any]) -> list[str]:
    cells = [
        row["recipe"],
        row["model"],
        f"{row['frames']} × {row['crop']}²",
        row["precision"],
        str(row["local_clips"]),
        f"{row['parameters'] / 1e6:.1f}",
        f"{row['multiply_adds_per_clip'] / 1e9:.3g}",
        f"{row['gradient_bytes'] / 1e6:.1f}",
    ]
    if row["seconds"] is None:
        return [*cells, row["failure"], "", ""]
    rate = f"{row['clips_per_second']['median']:.3g}"
    relative = spread_text(row["relative_clips_per_second"])
    return [*cells, spread_text(row["seconds"], 4, ""), rate, relative]
