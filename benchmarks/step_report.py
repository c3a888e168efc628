"""Tables of measured steps: shapes, their parts, variants, and the whole schedule."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from step_columns import REFERENCES
from step_variants import HOST

from multigrid import Shape
from slowfast_patches.utils.report import format_duration, format_table

__all__ = ["format_result"]

Row = Mapping[str, Any]


def format_result(result: Row) -> str:
    """Everything that was measured, as text; variants hold their shapes."""
    variants = result["variants"]
    tables = [_format_variant(variant) for variant in variants]
    tables.append(_format_totals(variants, result["num_videos"]))
    if result["recommended"] is not None:
        tables.append(_format_recommended(result["recommended"]))
    return "\n\n".join([*tables, _format_notes(result)])


_HEADERS = [
    "shape",
    "clips\nhere",
    "BN\nclips",
    "s per\niteration",
    "quartiles",
    "input",
    "forward",
    "backward",
    "optimizer",
    "clips/s",
    "Mpixels/s",
    "TFLOP/s",
    "of the\nmatrix rate",
    "peak,\nGB",
]


def _format_variant(variant: Row) -> str:
    """A table of a variant's shapes, under its name."""
    if variant["failure"] is not None:
        return f"{variant['name']}: not measured: {variant['failure']}"
    rows = variant["shapes"]
    ratios = [name for name in REFERENCES if any(name in row["relative"] for row in rows)]
    headers = [*_HEADERS, *(f"clips/s to\n{name}'s" for name in ratios)]
    cells = [_cells(row, ratios) for row in rows]
    return f"{_title(variant)}\n\n{format_table(headers, cells)}"


def _title(variant: Row) -> str:
    """The name, and what is switched on."""
    name, known = variant["name"], {"recipe": "as it is", "plain": "every switch off"}
    if name in HOST:
        return f"{name}: pyslowfast's own model and a plain loop"
    on = {
        key: value
        for key, value in variant["keys"].items()
        if value not in (False, 1) or value is True
    }
    pairs = " ".join(str(item) for pair in on.items() for item in pair)
    return f"{name}: {known.get(name, pairs)}"


def _cells(row: Row, ratios: Sequence[str]) -> list[str]:
    bn_size = "batch" if row["bn_size"] is None else str(row["bn_size"])
    cells = [str(Shape(*row["shape"])), str(row["local_clips"]), bn_size]
    if row["seconds"] is None:
        return [*cells, row["failure"], *[""] * (len(_HEADERS) + len(ratios) - 4)]
    parts, peak = row["parts"], row["peak_bytes"]
    return [
        *cells,
        f"{row['seconds']['median']:.4f}",
        _range(row["seconds"], 4),
        *(
            f"{parts[name]['median']:.4f}" if name in parts else "–"
            for name in ("input", "forward", "backward", "optimizer")
        ),
        f"{row['clips_per_second']['median']:.4g}",
        f"{row['pixels_per_second']['median'] / 1e6:.4g}",
        f"{row['flops_per_second']['median'] / 1e12:.3g}",
        f"{100 * row['matrix_share']['median']:.1f} %",
        "–" if peak is None else f"{peak / 1e9:.2f}",
        *(_ratio(row["relative"].get(name)) for name in ratios),
    ]


def _ratio(spread: Row | None) -> str:
    if spread is None:
        return "–"
    return f"{spread['median']:.2f}× ({spread['quartile_1']:.2f}–{spread['quartile_3']:.2f})"


def _range(spread: Row, digits: int) -> str:
    return f"{spread['quartile_1']:.{digits}f} to {spread['quartile_3']:.{digits}f}"


def _format_totals(variants: Sequence[Row], num_videos: int | None) -> str:
    """The whole schedule in each variant."""
    ratios = [name for name in REFERENCES if any(name in v["totals"]["relative"] for v in variants)]
    headers = ["whole schedule", "time", "baseline's", "multigrid's\nspeed-up", "quartiles"]
    headers += [f"to {name}" for name in ratios]
    rows = [_total_cells(variant, num_videos, ratios) for variant in variants]
    return format_table(headers, rows)


def _total_cells(variant: Row, num_videos: int | None, ratios: Sequence[str]) -> list[str]:
    found = variant["totals"]
    if "failure" in found:
        why = "not measured" if variant["failure"] else found["failure"]
        return [variant["name"], why, *[""] * (3 + len(ratios))]
    times = [
        "–" if num_videos is None else format_duration(found[key]["median"])
        for key in ("seconds", "baseline_seconds")
    ]
    speed_up = [f"{found['speed_up']['median']:.2f}×", _range(found["speed_up"], 2)]
    return [variant["name"], *times, *speed_up, *(_ratio(found["relative"].get(n)) for n in ratios)]


def _format_recommended(pairs: Sequence[str]) -> str:
    if not pairs:
        return "No switch alone was faster than plain by more than the spread."
    return (
        "Faster than plain over the whole schedule, each alone, by more than the spread:\n"
        f"{shlex.join(pairs)}"
    )


def _format_notes(result: Row) -> str:
    rates = ", ".join(
        f"{rate / 1e12:.4g} TFLOP/s in {name}" for name, rate in result["matrix_rates"].items()
    )
    notes = [
        f"{result['device']['name']}, {result['machine']['threads']} CPU threads; one process of "
        f"{result['processes']}, without loading, evaluation, and communication between processes.",
        f"Matrix products here: {rates}. FLOPs are those of training, 3 × the forward's, a "
        "multiply-add counted as two.",
    ]
    if result["pathway"] == "fast":
        notes.append(
            "Measured is the fast pathway alone: stem, stages, pool and classes, without the slow "
            "pathway and the lateral connections."
        )
    timed = [row for v in result["variants"] for row in v["shapes"] if row["seconds"] is not None]
    if any("backward" in row["parts"] and "forward" not in row["parts"] for row in timed):
        notes.append("A CUDA graph is forward and backward in one: both are under backward.")
    if result["num_videos"] is None:
        notes.append(
            f"No times, and the speed-up is that of very many videos: {result['no_videos']}"
        )
    if any(variant["name"].startswith("host") for variant in result["variants"]):
        notes.append(
            "host is pyslowfast's own model, BN and step, with a model of its own for each shape, "
            "for its head pools over a fixed window; host_tf32 is the same with TF32."
        )
    return "\n".join(notes)
