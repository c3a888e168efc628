"""The bar chart of measured steps: variants beside each other, or the parts of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multigrid import Shape
from slowfast_patches.utils.plots import COLOURS, MUTED, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_chart"]

Row = Mapping[str, Any]


def draw_chart(result: Row, path: Path) -> None:
    """Bars for each shape: how fast each variant is, relative to the host or to plain, with
    quartiles; of a single variant, the parts of its step.

    Raises:
        ValueError: a suffix that names no picture format, or nothing to draw.
    """
    variants = [variant for variant in result["variants"] if variant["failure"] is None]
    names = [variant["name"] for variant in variants]
    reference = next((name for name in ("host", "plain") if name in names), None)
    if len(variants) > 1 and reference is not None:
        _draw_variants(variants, reference, result, path)
    elif variants:
        _draw_parts(variants[0], result, path)
    else:
        raise ValueError(f"no variant was measured: nothing to draw in {path}")


_WHISKER = {"elinewidth": 0.9, "ecolor": "#30343b", "capsize": 2.5}
_PARTS = ("input", "forward", "backward", "optimizer")


def _draw_variants(variants: Sequence[Row], reference: str, result: Row, path: Path) -> None:
    """A panel for each variant, of bars for the shapes; all panels have the same scale."""
    shown = [variant for variant in variants if variant["name"] != reference]
    labels = [_label(row) for row in shown[0]["shapes"]]
    height = 0.9 + 1.05 * len(shown)
    figure, panels = new_figure(rows=len(shown), width=max(6.5, 1.05 * len(labels)), height=height)
    highest = 1.0
    for number, (axes, variant) in enumerate(zip(panels, shown, strict=True)):
        spreads = [row["relative"].get(reference) for row in variant["shapes"]]
        colour = COLOURS[number % len(COLOURS)]
        highest = max(highest, _draw_bars(axes, spreads, variant["name"], colour))
    for axes in panels:
        axes.axhline(1, color=MUTED, lw=1.0, ls="--", zorder=2.5)
        axes.set_ylim(0, 1.35 * highest)
        axes.tick_params(axis="x", length=0)
    panels[-1].set_xticks(range(len(labels)), labels)
    panels[-1].set_xlabel(f"clips × frames × crop² of a process; {_where(result)}")
    figure.supylabel(f"clips/s relative to {reference}", fontsize=10)
    save_figure(figure, path)


def _draw_bars(axes: Axes, spreads: Sequence[Row | None], name: str, colour: str) -> float:
    """A variant's bars with their quartiles and medians in figures; where the highest ends."""
    from matplotlib.patheffects import withStroke

    highest = 0.0
    for place, spread in enumerate(spreads):
        if spread is None:
            axes.text(place, 0, "none", ha="center", va="bottom", fontsize=8, color=MUTED)
            continue
        middle, top = spread["median"], spread["quartile_3"]
        whisker = [[middle - spread["quartile_1"]], [top - middle]]
        axes.bar(place, middle, 0.62, yerr=whisker, color=colour, error_kw=_WHISKER)
        axes.annotate(
            f"{middle:.2f}",
            (place, top),
            (0, 2),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )
        highest = max(highest, top)
    axes.set_title(name, loc="left", fontsize=9, pad=2)
    return highest


def _draw_parts(variant: Row, result: Row, path: Path) -> None:
    """A bar for each shape, of the parts of its step, in seconds."""
    rows = [row for row in variant["shapes"] if row["seconds"] is not None]
    if not rows:
        raise ValueError(f"no shape has a time: nothing to draw in {path}")
    figure, (axes,) = new_figure(rows=1, width=max(6.0, 1.1 * len(rows)), height=4.2)
    bottom = [0.0] * len(rows)
    graphs = not any("forward" in row["parts"] for row in rows)
    for colour, part in zip(COLOURS, _PARTS, strict=False):
        spreads = [row["parts"].get(part) for row in rows]
        heights = [0.0 if spread is None else spread["median"] for spread in spreads]
        if any(heights):
            label = "forward and backward" if graphs and part == "backward" else part
            axes.bar(range(len(rows)), heights, 0.7, bottom, color=colour, label=label)
        bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
    _draw_spread(axes, rows)
    axes.set_xticks(range(len(rows)), [_label(row) for row in rows])
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel("seconds a step")
    axes.set_xlabel(f"clips × frames × crop² of a process; {_where(result)}")
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=5, frameon=False)
    save_figure(figure, path)


def _draw_spread(axes: Axes, rows: Sequence[Row]) -> None:
    """The quartiles of the whole step."""
    spreads = [row["seconds"] for row in rows]
    middle = [spread["median"] for spread in spreads]
    low = [spread["median"] - spread["quartile_1"] for spread in spreads]
    high = [spread["quartile_3"] - spread["median"] for spread in spreads]
    axes.errorbar(range(len(rows)), middle, (low, high), fmt="none", **_WHISKER)


def _label(row: Row) -> str:
    _, frames, crop = row["shape"]
    own = "\nbaseline" if row["bn_size"] is None else ""
    return f"{Shape(row['local_clips'], frames, crop)}{own}"


def _where(result: Row) -> str:
    return str(result["device"]["name"])
