"""The bar chart of measured steps: variants beside each other, or the parts of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from multigrid import Shape
from slowfast_patches.utils.plots import COLOURS, MUTED, new_figure, save_figure

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


_PARTS = ("input", "forward", "backward", "optimizer")


def _draw_variants(variants: Sequence[Row], reference: str, result: Row, path: Path) -> None:
    """A group of bars for each shape; how many times the reference's clips a second."""
    shown = [variant for variant in variants if variant["name"] != reference]
    labels = [_label(row) for row in shown[0]["shapes"]]
    figure, (axes,) = new_figure(rows=1, width=max(7.0, 1.6 * len(labels)), height=4.6)
    width = 0.84 / len(shown)
    for number, variant in enumerate(shown):
        spreads = [row["relative"].get(reference) for row in variant["shapes"]]
        _draw_bars(axes, spreads, number, width, len(shown), variant["name"])
    axes.axhline(1, color=MUTED, lw=1.2, ls="--", label=f"{reference} = 1")
    axes.set_xticks(range(len(labels)), labels)
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel(f"clips a second, relative to {reference}")
    axes.set_xlabel(f"clips × frames × crop² of a process; {_where(result)}")
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=6, frameon=False)
    save_figure(figure, path)


def _draw_bars(
    axes: Axes, spreads: Sequence[Row | None], number: int, width: float, count: int, name: str
) -> None:
    places = [place for place, spread in enumerate(spreads) if spread is not None]
    found = [spread for spread in spreads if spread is not None]
    middle = [spread["median"] for spread in found]
    low = [spread["median"] - spread["quartile_1"] for spread in found]
    high = [spread["quartile_3"] - spread["median"] for spread in found]
    colour = COLOURS[number % len(COLOURS)]
    axes.bar(
        [place + (number - (count - 1) / 2) * width for place in places],
        middle,
        0.92 * width,
        yerr=(low, high),
        color=colour,
        alpha=1.0 if number < len(COLOURS) else 0.55,
        error_kw={"elinewidth": 0.9, "ecolor": "#30343b"},
        label=name,
    )


def _draw_parts(variant: Row, result: Row, path: Path) -> None:
    """A bar for each shape, of the parts of its step, in seconds."""
    rows = [row for row in variant["shapes"] if row["seconds"] is not None]
    if not rows:
        raise ValueError(f"no shape has a time: nothing to draw in {path}")
    figure, (axes,) = new_figure(rows=1, width=max(6.0, 1.1 * len(rows)), height=4.2)
    bottom = [0.0] * len(rows)
    for colour, part in zip(COLOURS, _PARTS, strict=False):
        spreads = [row["parts"].get(part) for row in rows]
        heights = [0.0 if spread is None else spread["median"] for spread in spreads]
        if any(heights):
            axes.bar(range(len(rows)), heights, 0.7, bottom, color=colour, label=part)
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
    axes.errorbar(
        range(len(rows)), middle, (low, high), fmt="none", elinewidth=1, ecolor="#30343b", capsize=3
    )


def _label(row: Row) -> str:
    _, frames, crop = row["shape"]
    own = "\nbaseline" if row["bn_size"] is None else ""
    return f"{Shape(row['local_clips'], frames, crop)}{own}"


def _where(result: Row) -> str:
    return str(result["device"]["name"])
