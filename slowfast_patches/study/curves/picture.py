"""Accuracy against training time, iterations and FLOPs, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slowfast_patches.study.curves.curves import AXES, Curves, Line, Point
from slowfast_patches.study.pictures import LONG_TITLES
from slowfast_patches.utils import pictures
from slowfast_patches.utils.pictures import COLOURS, MUTED
from slowfast_patches.utils.tables import format_count, format_flops

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_lengths"]


def plot_lengths(curves: Curves, path: Path, title: str = "") -> None:
    """Draw a line for each recipe through the means of its lengths, with the seeds as dots."""
    figure, panels = pictures.new_figure(rows=1, columns=len(AXES), width=13, height=5)
    longest = [cost.mean for line in curves.lines for _, cost, _ in curves.points("seconds", line)]
    unit, size = pictures.time_unit(max(longest, default=0.0))
    how = "by step times" if curves.timed else "loading included"
    labels = (f"training time, {how} ({unit})", "iterations", "training FLOPs")
    for axes, axis, label in zip(panels, AXES, labels, strict=True):
        scale = size if axis == "seconds" else 1.0
        _draw_goal(axes, curves)
        for number, line in enumerate(curves.lines):
            colour = COLOURS[number % len(COLOURS)]
            _draw_line(axes, curves, line, axis, colour, scale)
            _name_lengths(axes, curves.points(axis, line), colour, scale, below=number == 0)
        axes.set_xlabel(label)
        _set_ticks(axes, axis)
    panels[0].set_ylabel(f"{LONG_TITLES[curves.metric]} (%)")
    explained = (
        "●: mean over seeds ± standard deviation, ·: a seed, numbers: × the recipe's length, grey: "
        f"within 1 point of the best of {curves.lines[0].label}"
    )
    pictures.add_legend(figure, panels[0], explained, columns=min(len(curves.lines), 4))
    if title:
        figure.suptitle(title, fontsize=10)
    pictures.save_figure(figure, path)


def _draw_line(
    axes: Axes, curves: Curves, line: Line, axis: str, colour: str, scale: float
) -> None:
    for measured in line.points.values():
        costs = curves.costs(axis, measured)
        found = {seed: run[curves.metric] for seed, run in measured.runs.items()}
        x = [costs[seed] / scale for seed in found]
        axes.plot(x, list(found.values()), "o", color=colour, ms=5, alpha=0.35, mew=0, zorder=3)
    points = curves.points(axis, line)
    x = [cost.mean / scale for _, cost, _ in points]
    y = [mean.mean for *_, mean in points]
    spread = [mean.std or 0.0 for *_, mean in points]
    label = line.label if points else f"{line.label} (missing)"
    style: dict[str, Any] = {
        "marker": "o",
        "ms": 6,
        "mec": "white",
        "lw": 2,
        "elinewidth": 1.2,
        "capsize": 3,
    }
    axes.errorbar(x, y, yerr=spread, color=colour, label=label, **style)


def _name_lengths(
    axes: Axes, points: Sequence[Point], colour: str, scale: float, *, below: bool
) -> None:
    """The first line's lengths below it, the others' above, where lines that rise leave room."""
    from matplotlib.patheffects import withStroke

    offset = (5, -11) if below else (-5, 6)
    style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8, "color": colour}
    style["ha"] = "left" if below else "right"
    style["path_effects"] = [withStroke(linewidth=2.5, foreground="white")]
    for length, cost, mean in points:
        axes.annotate(f"{length:g}×", (cost.mean / scale, mean.mean), xytext=offset, **style)


def _draw_goal(axes: Axes, curves: Curves) -> None:
    """What is within a point of the baseline's best, to see who gets there."""
    if levels := curves.levels():
        best = levels[0].accuracy
        axes.axhspan(best - 1, best, color=MUTED, alpha=0.25, lw=0, zorder=1)


def _set_ticks(axes: Axes, axis: str) -> None:
    """A logarithmic axis, on which lengths that double are evenly spaced, with round numbers."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_xscale("log")
    axes.margins(x=0.22)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: _TICKS[axis](value))


def _without_unit(flops: float) -> str:
    return format_flops(flops).removesuffix("FLOP").rstrip()


_TICKS = {"seconds": "{:g}".format, "iterations": format_count, "flops": _without_unit}
