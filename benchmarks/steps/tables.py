"""Measured steps in tables: shapes, parts, variants, the whole schedule."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from common import spread_text

from multigrid import Shape
from slowfast_patches.utils.tables import format_duration, format_table
from steps.rates import REFERENCES
from steps.variants import HOST

__all__ = ["format_result"]

Row = Mapping[str, Any]

_PARTS = ("input", "forward", "backward", "optimizer")
_HEADERS = ["shape", "clips\nhere", "BN\nclips", "s per iteration\n(quartiles)", *_PARTS, "clips/s"]
_HEADERS += ["Mpixels/s", "TFLOP/s", "of the\nmatrix rate", "peak,\nGB"]


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
    others = [other for other in REFERENCES if any(other in row["relative"] for row in rows)]
    headers = [*_HEADERS, *(f"clips/s to\n{other}'s" for other in others)]
    on = [(k, v) for k, v in variant["keys"].items() if v is not False and (v is True or v != 1)]
    title = {"recipe": "as it is", "plain": "every switch off"}.get(name)
    if name in HOST:
        title = "pyslowfast's own model and a plain loop"
    title = title or " ".join(str(item) for pair in on for item in pair)
    return f"{name}: {title}\n\n{format_table(headers, [_cells(row, others) for row in rows])}"


def _cells(row: Row, others: Sequence[str]) -> list[str]:
    bn_size = "batch" if row["bn_size"] is None else str(row["bn_size"])
    cells = [str(Shape(*row["shape"])), str(row["local_clips"]), bn_size]
    if row["seconds"] is None:
        return [*cells, row["failure"], *[""] * (len(_HEADERS) + len(others) - 4)]
    parts = row["parts"]
    peak = row["peak_bytes"]
    return [
        *cells,
        spread_text(row["seconds"], 4, ""),
        *(f"{parts[name]['median']:.4f}" if name in parts else "–" for name in _PARTS),
        f"{row['clips_per_second']['median']:.4g}",
        f"{row['pixels_per_second']['median'] / 1e6:.4g}",
        f"{row['flops_per_second']['median'] / 1e12:.3g}",
        f"{100 * row['matrix_share']['median']:.1f} %",
        "–" if peak is None else f"{peak / 1e9:.2f}",
        *(spread_text(row["relative"].get(name)) for name in others),
    ]


def _format_totals(variants: Sequence[Row], num_videos: int | None) -> str:
    """The whole schedule in each variant."""
    others = [name for name in REFERENCES if any(name in v["totals"]["relative"] for v in variants)]
    headers = ["whole schedule", "time", "baseline's", "multigrid's speed-up"]
    rows = list[list[str]]()
    for variant in variants:
        found = variant["totals"]
        if "failure" in found:
            why = "not measured" if variant["failure"] else found["failure"]
            rows.append([variant["name"], why, *[""] * (2 + len(others))])
            continue
        times = [found[key]["median"] for key in ("seconds", "baseline_seconds")]
        shown = ["–" if num_videos is None else format_duration(seconds) for seconds in times]
        relative = [spread_text(found["relative"].get(name)) for name in others]
        rows.append([variant["name"], *shown, spread_text(found["speed_up"]), *relative])
    return format_table([*headers, *(f"to {name}" for name in others)], rows)


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
