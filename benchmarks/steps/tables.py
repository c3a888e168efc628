"""Measured steps in tables: shapes, parts, variants, the whole schedule."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from common import Column, spread_text, table

from multigrid import Shape
from slowfast_patches.utils.tables import format_duration
from steps.rates import REFERENCES
from steps.variants import HOST

__all__ = ["format_result"]

Row = Mapping[str, Any]

_PARTS = ("input", "forward", "backward", "optimizer")
_SHAPES: dict[str, Column] = {
    "shape": ("shape", lambda shape: str(Shape(*shape))),
    "clips\nhere": ("local_clips", str),
    "BN\nclips": ("bn_size", str),
    "s per iteration\n(quartiles)": ("seconds", lambda spread: spread_text(spread, 4, "")),
    **{part: (f"parts|{part}|median", "{:.4f}".format) for part in _PARTS},
    "clips/s": ("clips_per_second|median", "{:.4g}".format),
    "Mpixels/s": ("pixels_per_second|median", lambda rate: f"{rate / 1e6:.4g}"),
    "TFLOP/s": ("flops_per_second|median", lambda rate: f"{rate / 1e12:.3g}"),
    "of the\nmatrix rate": ("matrix_share|median", "{:.1%}".format),
    "peak,\nGB": ("peak_bytes", lambda size: f"{size / 1e9:.2f}"),
}


def format_result(result: Row) -> str:
    """Everything that was measured, as text; variants hold their shapes."""
    variants = result["variants"]
    tables = [_format_variant(variant) for variant in variants]
    tables.append(_format_totals(variants, result["num_videos"]))
    if (pairs := result["recommended"]) is not None:
        tables.append(
            "Faster than plain over the whole schedule, each alone, by more than the spread:\n"
            f"{shlex.join(pairs) or 'none'}"
        )
    return "\n\n".join([*tables, *_notes(result)])


def _format_variant(variant: Row) -> str:
    """A table of a variant's shapes, under its name and what is switched on."""
    name = variant["name"]
    if variant["failure"] is not None:
        return f"{name}: not measured: {variant['failure']}"
    rows = variant["shapes"]
    on = [(k, v) for k, v in variant["keys"].items() if v is not False and (v is True or v != 1)]
    title = {"recipe": "as it is", "plain": "every switch off"}.get(name)
    if name in HOST:
        title = "pyslowfast's own model and a plain loop"
    title = title or " ".join(str(item) for pair in on for item in pair)
    failures = {f"{Shape(*row['shape'])}: {row['failure']}" for row in rows if "failure" in row}
    shapes = table(rows, _SHAPES | _relative(rows, "clips/s to\n{}'s"))
    return "\n".join([f"{name}: {title}\n", shapes, *sorted(failures)])


def _relative(rows: Sequence[Row], header: str) -> dict[str, Column]:
    """A column for each variant that rows are relative to."""
    others = [name for name in REFERENCES if any(name in row["relative"] for row in rows)]
    return {header.format(name): (f"relative|{name}", spread_text) for name in others}


def _format_totals(variants: Sequence[Row], num_videos: int | None) -> str:
    """The whole schedule in each variant; times only where the training set is known."""
    rows = [{"name": variant["name"], **variant["totals"]} for variant in variants]
    times: dict[str, Column] = {
        "time": ("seconds|median", format_duration),
        "baseline's": ("baseline_seconds|median", format_duration),
    }
    columns: dict[str, Column] = {
        "whole schedule": ("name", str),
        **(times if num_videos is not None else {}),
        "multigrid's speed-up": ("speed_up", spread_text),
        **_relative(rows, "to {}"),
        "": ("failure", str),
    }
    return table(rows, columns)


def _notes(result: Row) -> list[str]:
    rates = ", ".join(f"{r / 1e12:.4g} TFLOP/s in {n}" for n, r in result["matrix_rates"].items())
    notes = [
        f"{result['device']['name']}, {result['machine']['threads']} CPU threads; one process of "
        f"{result['processes']}, without loading, evaluation, and communication between "
        f"processes. Matrix products here: {rates}. FLOPs are those of training, 3 × the "
        "forward's, a multiply-add counted as two."
    ]
    if result["num_videos"] is None:
        why = result["no_videos"]
        notes.append(f"No times, and the speed-up is that of very many videos: {why}")
    if any(variant["name"] in HOST for variant in result["variants"]):
        notes.append(
            "host is pyslowfast's own model, BN and step, with a model of its own for each shape, "
            "for its head pools over a fixed window; host_tf32 is the same with TF32."
        )
    return notes
