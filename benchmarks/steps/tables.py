"""Measured steps in tables (shapes, parts, variants, the whole schedule) and in a bar chart."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import spread_text

from multigrid import Shape
from slowfast_patches.utils.pictures import COLOURS, MUTED, new_figure, save_figure
from slowfast_patches.utils.tables import format_duration, format_table
from steps.rates import REFERENCES
from steps.variants import HOST

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_chart", "format_result"]

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
    parts, peak = row["parts"], row["peak_bytes"]
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
    timed = [row for v in result["variants"] for row in v["shapes"] if row["seconds"] is not None]
    graphs = any("backward" in row["parts"] and "forward" not in row["parts"] for row in timed)
    notes = [
        f"{result['device']['name']}, {result['machine']['threads']} CPU threads; one process of "
        f"{result['processes']}, without loading, evaluation, and communication between "
        f"processes. Matrix products here: {rates}. FLOPs are those of training, 3 × the "
        "forward's, a multiply-add counted as two."
    ]
    if result["pathway"] == "fast":
        notes.append("Measured is the fast pathway alone, without slow and lateral connections.")
    if graphs:
        notes.append("A CUDA graph is forward and backward in one: both are under backward.")
    if result["num_videos"] is None:
        why = result["no_videos"]
        notes.append(f"No times, and the speed-up is that of very many videos: {why}")
    if any(variant["name"] in HOST for variant in result["variants"]):
        notes.append(
            "host is pyslowfast's own model, BN and step, with a model of its own for each shape, "
            "for its head pools over a fixed window; host_tf32 is the same with TF32."
        )
    return notes


_WHISKER: dict[str, Any] = {"elinewidth": 0.9, "ecolor": "#30343b", "capsize": 2.5}


def draw_chart(result: Row, path: Path) -> None:
    """A panel for each variant, of bars for the shapes: how fast it is, relative to the host or to
    plain, with quartiles; all panels have the same scale.

    Raises:
        ValueError: a suffix that names no picture format.
    """
    measured = {v["name"]: v for v in result["variants"] if v["failure"] is None}
    reference = measured.get("host", measured.get("plain"))
    assert reference is not None, list(measured)
    shown = [variant for variant in measured.values() if variant is not reference]
    labels = _labels(reference["shapes"])
    height = 0.9 + 1.05 * len(shown)
    figure, panels = new_figure(rows=len(shown), width=max(6.5, 1.05 * len(labels)), height=height)
    highest = 1.0
    for number, (axes, variant) in enumerate(zip(panels, shown, strict=True)):
        colour = COLOURS[number % len(COLOURS)]
        highest = max(highest, _draw_bars(axes, variant, reference, colour))
    for axes in panels:
        axes.axhline(1, color=MUTED, lw=1.0, ls="--", zorder=2.5)
        axes.set_ylim(0, 1.35 * highest)
        axes.tick_params(axis="x", length=0)
    panels[-1].set_xticks(range(len(labels)), labels)
    panels[-1].set_xlabel(f"clips × frames × crop² of a process; {result['device']['name']}")
    figure.supylabel(f"clips/s relative to {reference['name']}", fontsize=10)
    save_figure(figure, path)


def _draw_bars(axes: Axes, variant: Row, reference: Row, colour: str) -> float:
    """A variant's bars with their quartiles and medians in figures; where the highest ends."""
    highest = 0.0
    axes.set_title(variant["name"], loc="left", fontsize=9, pad=2)
    for place, row in enumerate(variant["shapes"]):
        spread = row["relative"].get(reference["name"])
        if spread is None:
            axes.text(place, 0, "none", ha="center", va="bottom", fontsize=8, color=MUTED)
            continue
        axes.bar(place, spread["median"], 0.62, color=colour)
        middle, top = spread["median"], spread["quartile_3"]
        ends = ([middle - spread["quartile_1"]], [top - middle])
        axes.errorbar([place], [middle], ends, fmt="none", **_WHISKER)
        axes.annotate(
            f"{middle:.2f}", (place, top), (0, 2), textcoords="offset points", ha="center"
        )
        highest = max(highest, top)
    return highest


def _labels(rows: Sequence[Row]) -> list[str]:
    """The shapes of a process; the first is the baseline's, with its BN."""
    shapes = [str(Shape(row["local_clips"], *row["shape"][1:])) for row in rows]
    return [f"{shapes[0]}\nbaseline", *shapes[1:]]
