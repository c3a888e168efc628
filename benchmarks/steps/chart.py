"""The bar chart of measured steps: variants beside each other, or the parts of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multigrid import Shape
from slowfast_patches.utils.pictures import COLOURS, MUTED, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_chart"]

Row = Mapping[str, Any]

_WHISKER: dict[str, Any] = {"elinewidth": 0.9, "ecolor": "#30343b", "capsize": 2.5}


def draw_chart(result: Row, path: Path) -> None:
    """Bars for each shape: how fast each variant is, relative to the host or to plain, with
    quartiles; of a single variant, the parts of its step.

    Raises:
        ValueError: a suffix that names no picture format, or nothing to draw.
    """
    measured = {v["name"]: v for v in result["variants"] if v["failure"] is None}
    reference = measured.get("host", measured.get("plain"))
    where = f"clips × frames × crop² of a process; {result['device']['name']}"
    if len(measured) > 1 and reference is not None:
        _draw_variants(list(measured.values()), reference, where, path)
    elif measured:
        _draw_parts(next(iter(measured.values())), where, path)
    else:
        raise ValueError(f"no variant was measured: nothing to draw in {path}")


def _draw_variants(variants: Sequence[Row], reference: Row, where: str, path: Path) -> None:
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
    panels[-1].set_xlabel(where)
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
        axes.bar(place, spread["median"], 0.62, color=colour)
        _draw_quartiles(axes, [place], [spread])
        other = row["shape"] != reference["shapes"][place]["shape"]
        text = f"{spread['median']:.2f}" + (f" ({row['shape'][2]}²)" if other else "")
        top = spread["quartile_3"]
        axes.annotate(text, (place, top), (0, 2), textcoords="offset points", ha="center")
        highest = max(highest, spread["quartile_3"])
    return highest


def _draw_parts(variant: Row, where: str, path: Path) -> None:
    """A bar for each shape, of the parts of its step, in seconds; none where there is no time."""
    timed = {p: row for p, row in enumerate(variant["shapes"]) if row["seconds"] is not None}
    if not timed:
        raise ValueError(f"no shape has a time: nothing to draw in {path}")
    labels = _labels(variant["shapes"])
    figure, (axes,) = new_figure(rows=1, width=max(6.0, 1.1 * len(labels)), height=4.2)
    bottom = [0.0] * len(timed)
    names = list(next(iter(timed.values()))["parts"])
    for colour, part in zip(COLOURS, names, strict=False):
        heights = [row["parts"][part]["median"] for row in timed.values()]
        label = "forward and backward" if part == "backward" and "forward" not in names else part
        axes.bar(list(timed), heights, 0.7, bottom, color=colour, label=label)
        bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
    _draw_quartiles(axes, list(timed), [row["seconds"] for row in timed.values()])
    axes.set_xticks(range(len(labels)), labels)
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel("seconds a step")
    axes.set_xlabel(where)
    figure.legend(loc="outside upper center", ncols=5, frameon=False)
    save_figure(figure, path)


def _draw_quartiles(axes: Axes, places: Sequence[int], spreads: Sequence[Row]) -> None:
    middle = [spread["median"] for spread in spreads]
    low = [spread["median"] - spread["quartile_1"] for spread in spreads]
    high = [spread["quartile_3"] - spread["median"] for spread in spreads]
    axes.errorbar(places, middle, (low, high), fmt="none", **_WHISKER)


def _labels(rows: Sequence[Row]) -> list[str]:
    """The shapes of a process; the first is the baseline's, with its BN."""
    shapes = [str(Shape(row["local_clips"], *row["shape"][1:])) for row in rows]
    return [f"{shapes[0]}\nbaseline", *shapes[1:]]
