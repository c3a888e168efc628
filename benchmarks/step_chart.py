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
    measured = {variant["name"]: variant for variant in variants}
    reference = measured.get("host", measured.get("plain"))
    if len(variants) > 1 and reference is not None:
        _draw_variants(variants, reference, result, path)
    elif variants:
        _draw_parts(variants[0], result, path)
    else:
        raise ValueError(f"no variant was measured: nothing to draw in {path}")


_WHISKER = {"elinewidth": 0.9, "ecolor": "#30343b", "capsize": 2.5}
_PARTS = ("input", "forward", "backward", "optimizer")


def _draw_variants(variants: Sequence[Row], reference: Row, result: Row, path: Path) -> None:
    """A panel for each variant, of bars for the shapes; all panels have the same scale."""
    shown = [variant for variant in variants if variant is not reference]
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
    panels[-1].set_xlabel(f"clips × frames × crop² of a process; {_where(result)}")
    figure.supylabel(f"clips/s relative to {reference['name']}", fontsize=10)
    save_figure(figure, path)


def _draw_bars(axes: Axes, variant: Row, reference: Row, colour: str) -> float:
    """A variant's bars with their quartiles and medians in figures; where the highest ends.

    They stand at the reference's shapes; where one differs, its crop is beside the median.
    """
    highest = 0.0
    axes.set_title(variant["name"], loc="left", fontsize=9, pad=2)
    for place, row in zip(variant["matches"][reference["name"]], variant["shapes"], strict=True):
        spread = row["relative"][reference["name"]]
        if spread is None:
            axes.text(place, 0, "none", ha="center", va="bottom", fontsize=8, color=MUTED)
            continue
        middle, top = spread["median"], spread["quartile_3"]
        whisker = [[middle - spread["quartile_1"]], [top - middle]]
        axes.bar(place, middle, 0.62, yerr=whisker, color=colour, error_kw=_WHISKER)
        own = row["shape"] != reference["shapes"][place]["shape"]
        _write(axes, (place, top), f"{middle:.2f}" + (f" ({row['shape'][2]}²)" if own else ""))
        highest = max(highest, top)
    return highest


def _write(axes: Axes, place: tuple[float, float], text: str) -> None:
    """Small text above a point, which a line behind it does not cross."""
    from matplotlib.patheffects import withStroke

    axes.annotate(
        text,
        place,
        (0, 2),
        textcoords="offset points",
        ha="center",
        fontsize=8,
        path_effects=[withStroke(linewidth=2.5, foreground="white")],
    )


def _draw_parts(variant: Row, result: Row, path: Path) -> None:
    """A bar for each shape, of the parts of its step, in seconds; none where there is no time."""
    timed = [(p, row) for p, row in enumerate(variant["shapes"]) if row["seconds"] is not None]
    if not timed:
        raise ValueError(f"no shape has a time: nothing to draw in {path}")
    places, rows = [place for place, _ in timed], [row for _, row in timed]
    labels = _labels(variant["shapes"])
    figure, (axes,) = new_figure(rows=1, width=max(6.0, 1.1 * len(labels)), height=4.2)
    bottom = [0.0] * len(rows)
    graphs = not any("forward" in row["parts"] for row in rows)
    for colour, part in zip(COLOURS, _PARTS, strict=False):
        spreads = [row["parts"].get(part) for row in rows]
        heights = [0.0 if spread is None else spread["median"] for spread in spreads]
        if any(heights):
            label = "forward and backward" if graphs and part == "backward" else part
            axes.bar(places, heights, 0.7, bottom, color=colour, label=label)
        bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
    _draw_spread(axes, places, rows)
    axes.set_xticks(range(len(labels)), labels)
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel("seconds a step")
    axes.set_xlabel(f"clips × frames × crop² of a process; {_where(result)}")
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=5, frameon=False)
    save_figure(figure, path)


def _draw_spread(axes: Axes, places: Sequence[int], rows: Sequence[Row]) -> None:
    """The quartiles of the whole step."""
    spreads = [row["seconds"] for row in rows]
    middle = [spread["median"] for spread in spreads]
    low = [spread["median"] - spread["quartile_1"] for spread in spreads]
    high = [spread["quartile_3"] - spread["median"] for spread in spreads]
    axes.errorbar(places, middle, (low, high), fmt="none", **_WHISKER)


def _labels(rows: Sequence[Row]) -> list[str]:
    """The shapes of a process; the first is the baseline's, with its BN."""
    shapes = [str(Shape(row["local_clips"], *row["shape"][1:])) for row in rows]
    return [f"{shapes[0]}\nbaseline", *shapes[1:]]


def _where(result: Row) -> str:
    return str(result["device"]["name"])
