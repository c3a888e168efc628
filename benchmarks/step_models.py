"""Models side by side: what a training step of each costs with the same number of clips."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from step_bench import Bench, Case, prepare_device, provenance, quartiles, time_in_turns

from multigrid import Shape
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.launch.launch import processes_of
from slowfast_patches.models.flops import check_shapes, flops_per_clip
from slowfast_patches.plan.cluster.gradients import exchange_of
from slowfast_patches.plan.step_times import device_of, shapes_to_measure
from slowfast_patches.utils.report import format_table

__all__ = ["format_models", "measure_models"]

Recipe = tuple[str, Recipe]
"""The recipe's file, and what it says."""


def measure_models(
    recipes: Sequence[Recipe], clips: int | None, rounds: int, seconds: float
) -> dict[str, Any]:
    """The time of a step of each recipe at its baseline's shape, and what the step consists of.

    Args:
        clips: those of one process, of every recipe; None where the recipes agree on them.
        rounds: in each of them every recipe has its turn.
        seconds: of each recipe over all rounds, about.

    Raises:
        ValueError: recipes for different devices, or with different numbers of clips.
    """
    _check_devices(recipes)
    clips = _common_clips(recipes) if clips is None else clips
    for _, recipe in recipes:
        check_shapes(recipe, [_shape(recipe, clips)])
    device = prepare_device(recipes[0][1])
    cases = [Case(Bench(recipe, device), _shape(recipe, clips), None) for _, recipe in recipes]
    time_in_turns(cases, rounds, seconds)
    rows = [_row(path, case) for (path, _), case in zip(recipes, cases, strict=True)]
    for row in rows:
        row["relative_clips_per_second"] = _relative(rows[0]["seconds"], row["seconds"])
    return provenance(device) | {"clips": clips, "models": rows}


def _check_devices(recipes: Sequence[Recipe]) -> None:
    devices = {device_of(recipe): path for path, recipe in recipes}
    if len(devices) > 1:
        raise ValueError(
            f"{devices['cuda']} trains on GPUs and {devices['cpu']} on the CPU; give NUM_GPUS 0, "
            "or a number of GPUs, for all recipes"
        )


def _common_clips(recipes: Sequence[Recipe]) -> int:
    shares = [_base(recipe).batch // processes_of(recipe) for _, recipe in recipes]
    if len(set(shares)) > 1:
        found = ", ".join(
            f"{path} {share}" for (path, _), share in zip(recipes, shares, strict=True)
        )
        raise ValueError(f"the recipes differ in the clips of one process ({found}); give --clips")
    return shares[0]


def _base(recipe: Recipe) -> Shape:
    (shape, _), *_ = shapes_to_measure(recipe)
    return shape


def _shape(recipe: Recipe, clips: int) -> Shape:
    """The baseline's, with `clips` clips a process."""
    base = _base(recipe)
    return Shape(clips * processes_of(recipe), base.frames, base.crop)


def _row(path: str, case: Case) -> dict[str, Any]:
    recipe, shape = case.bench.recipe, case.shape
    training = flops_per_clip(recipe)(shape.frames, shape.crop)
    buckets = exchange_of(recipe).buckets(shape.frames, shape.crop)
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
        "precision": case.bench.precision_name(),
        "parameters": sum(p.numel() for p in case.bench.model.parameters()),
        "training_flops_per_clip": training,
        "multiply_adds_per_clip": training / 6,  # of a forward, each two operations
        "gradient_bytes": sum(bucket.size for bucket in buckets),
        "gradient_buckets": len(buckets),
        **timed,
        "clips_per_second": spread and quartiles([case.clips / took for took in spread["rounds"]]),
    }


def _relative(first: dict[str, Any] | None, own: dict[str, Any] | None) -> dict[str, Any] | None:
    """How many times the first recipe's clips a second has another: a ratio each round."""
    if first is None or own is None:
        return None
    return quartiles([a / b for a, b in zip(first["rounds"], own["rounds"], strict=True)])


_HEADERS = [
    "recipe",
    "model",
    "frames × crop²",
    "precision",
    "clips\nhere",
    "parameters,\nM",
    "multiply-adds\na clip, G",
    "gradients\na step, MB",
    "s per step",
    "quartiles",
    "clips/s",
    "relative\nclips/s",
    "quartiles",
]


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
        return [*cells, row["failure"], "", "", "", ""]
    relative = row["relative_clips_per_second"]
    return [
        *cells,
        f"{row['seconds']['median']:.4f}",
        _range(row["seconds"], 4),
        f"{row['clips_per_second']['median']:.3g}",
        "" if relative is None else f"{relative['median']:.2f}×",
        "" if relative is None else _range(relative, 2),
    ]


def _range(spread: dict[str, Any], digits: int) -> str:
    return f"{spread['quartile_1']:.{digits}f} to {spread['quartile_3']:.{digits}f}"
