"""Format the result of a measurement of step times as tables."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from common import Column, spread_text, table

from multigrid import Shape
from slowfast_patches.utils.clock import format_duration
from steps.rates import REFERENCES

Row = Mapping[str, Any]

_PARTS = ("input", "forward", "backward", "optimizer")
_SHAPES: dict[str, Column] = {
    "shape": ("shape", lambda shape: str(Shape(*shape))),
    "clips\nhere": ("local_clips", str),
    "BN\nclips": ("bn_group_size", str),
    "s per iteration\n(quartiles)": ("seconds", lambda spread: spread_text(spread, 4, "")),
    **{part: (f"parts|{part}|median", "{:.4f}".format) for part in _PARTS},
    "clips/s": ("clips_per_second|median", "{:.4g}".format),
    "TFLOP/s": ("flops_per_second|median", lambda rate: f"{rate / 1e12:.3g}"),
    "of the\nmatrix rate": ("matrix_share|median", "{:.1%}".format),
}


def format_result(result: Row) -> str:
    """Format the result of a measurement as text."""
    variants = result["variants"]
    tables = [_format_variant(variant) for variant in variants]
    tables.append(_format_totals(variants, result["num_videos"]))
    if (pairs := result["recommended"]) is not None:
        tables.append(
            "Switches that, each used alone, make the whole schedule faster than plain (in at "
            "least three quarters of the rounds):\n"
            f"{shlex.join(pairs) or 'none'}"
        )
    return "\n\n".join([*tables, *_notes(result)])


def _format_variant(variant: Row) -> str:
    """Return a table with a row per shape of a variant. The title has the switches that are on."""
    name = variant["name"]
    if variant["failure"] is not None:
        return f"{name} is not measured: {variant['failure']}"
    rows = variant["shapes"]
    on = [f"{k} {v}" for k, v in variant["keys"].items() if str(v) not in ("False", "1")]
    failures = {f"{Shape(*row['shape'])}: {row['failure']}" for row in rows if "failure" in row}
    shapes = table(rows, _SHAPES | _relative(rows, "clips/s to\n{}'s"))
    return "\n".join([f"{name}: {' '.join(on)}\n", shapes, *sorted(failures)])


def _relative(rows: Sequence[Row], header: str) -> dict[str, Column]:
    """Return a column of relative speeds for each reference variant that was measured."""
    others = [name for name in REFERENCES if any(name in row["relative"] for row in rows)]
    return {header.format(name): (f"relative|{name}", spread_text) for name in others}


def _format_totals(variants: Sequence[Row], num_videos: int | None) -> str:
    """Return a table of the time of the whole schedule in each variant.

    If the number of training videos is unknown, the table shows speed-ups but no times.
    """
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
        f"Measured on {result['device']['name']} with {result['machine']['threads']} CPU threads, "
        f"in one of {result['processes']} training processes. Data loading, evaluation and "
        "communication between processes are not included. Speed of matrix products on this "
        f"device: {rates}. The FLOPs are training FLOPs: 3 × the FLOPs of the forward pass, where "
        "a multiply-add counts as two FLOPs."
    ]
    if result["num_videos"] is None:
        notes.append(
            "The number of training videos is unknown, so the time of the schedule is not shown, "
            "and the speed-up is the limit for very many videos. Give --dataset-size N"
        )
    return notes
