"""Accuracy against training time: of a comparison's runs, and of trainings of several lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from slowfast_patches.study.curves import AXES, curves_of
from slowfast_patches.study.report import mean_over_seeds
from slowfast_patches.study.runs import Results
from slowfast_patches.utils import pictures
from slowfast_patches.utils.pictures import COLOURS, new_figure
from slowfast_patches.utils.tables import format_count, format_flops

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["LONG_TITLES", "plot_figure", "plot_lengths", "plot_trainings"]

LONG_TITLES = {"top1": "top-1 accuracy", "map": "mean average precision"}
"""Primary metrics, where there is room."""


def plot_trainings(runs: pd.DataFrame, results: Results, metric: str, how: str, path: Path) -> None:
    """A metric against training time while the runs trained, as in the paper's Figure 1: a line for
    each seed, a mark where their mean ends. By step times, the clock of each run is scaled to what
    its steps take alone; `how` says which of both."""
    figure, [axes] = new_figure(rows=1, width=8, height=5)
    unit, size = pictures.time_unit(runs["clock"].max() if len(runs) else 0.0)
    for number, (name, own) in enumerate(runs.groupby("arm", sort=False)):
        colour = COLOURS[number % len(COLOURS)]
        for run in own.itertuples():
            scale = run.clock / run.seconds / size
            evaluations = results[run.arm, run.seed]["evaluations"]
            points = [(point["seconds"] * scale, point[metric]) for point in evaluations]
            axes.plot(*np.array(points).T, color=colour, alpha=0.5 if len(own) > 1 else 1)
        label = str(name)
        accuracy = mean_over_seeds(runs, label, metric)
        if accuracy is None:
            continue
        speed_up = own["speed_up"].mean()
        label += f": {accuracy.format()} %"
        label += f", {speed_up:.1f}× the speed" if abs(speed_up - 1) >= 0.005 else ""
        style: dict[str, Any] = {"fmt": "os^"[number // len(COLOURS) % 3], "ms": 8, "capsize": 4}
        x = own["clock"].mean() / size
        axes.errorbar(
            x, accuracy.mean, yerr=accuracy.std, color=colour, label=label, mec="white", **style
        )
    axes.set_xlabel(f"training time, {how} ({unit})")
    axes.set_ylabel(f"{LONG_TITLES[metric]} (%)")
    axes.set_xlim(left=0)
    if len(runs):
        pictures.add_legend(figure, axes, "lines: validation, marks: final results")
    pictures.save_figure(figure, path)


def plot_lengths(runs: pd.DataFrame, metric: str, how: str, path: Path) -> None:
    """A metric against training time, iterations and FLOPs, side by side: a line for each recipe
    through the means of its lengths."""
    figure, panels = new_figure(rows=1, columns=len(AXES), width=13, height=5)
    unit, size = pictures.time_unit(runs["clock"].max() if len(runs) else 0.0)
    titles = (f"training time, {how} ({unit})", "iterations", "training FLOPs")
    ticks = (lambda seconds: f"{seconds / size:g}", format_count, _prefixed)
    scales = (size, 1.0, 1.0)
    for axes, axis, title, tick, scale in zip(panels, AXES, titles, ticks, scales, strict=True):
        curves = curves_of(runs, axis, metric)
        _draw_curves(axes, curves)
        _name_lengths(axes, curves)
        _set_log_ticks(axes, tick, scale)
        axes.set_xlabel(title)
    panels[0].set_ylabel(f"{LONG_TITLES[metric]} (%)")
    explained = "mean over seeds ± standard deviation; numbers: × the recipe's length"
    if len(runs):
        pictures.add_legend(figure, panels[0], explained, columns=min(len(curves), 4))
    pictures.save_figure(figure, path)


def plot_figure(
    curves: Mapping[str, pd.DataFrame],
    published: Mapping[str, Sequence[tuple[float, float]]],
    title: str,
    ours: str,
    path: Path,
) -> None:
    """A figure of the paper: curves over the time relative to the baseline's, called `ours` and
    filled; published points of them, (time, accuracy), are hollow."""
    figure, [axes] = new_figure(rows=1, width=8.5, height=5.5)
    _draw_curves(axes, curves)
    for number, points in enumerate(published.values()):
        style: dict[str, Any] = {"mfc": "none", "mec": COLOURS[number % len(COLOURS)], "ms": 10}
        for time, accuracy in points:
            axes.plot(time, accuracy, "o", mew=1.8, zorder=5, **style)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda time, _: f"{time:g}" if time >= 1 else f"1/{1 / time:g}")
    axes.set_xlabel("training time, relative to the baseline's (loading included)")
    axes.set_ylabel("top-1 accuracy (%)")
    pictures.add_legend(figure, axes, f"●: {ours}, ○: published")
    axes.set_title(title, fontsize=10)
    pictures.save_figure(figure, path)


def _draw_curves(axes: Axes, curves: Mapping[str, pd.DataFrame]) -> None:
    style: dict[str, Any] = {"marker": "o", "mec": "white", "lw": 2, "capsize": 3}
    for number, (label, curve) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        name = label if len(curve) else f"{label} (missing)"
        spread = curve["std"].fillna(0.0)
        axes.errorbar(
            curve["cost"], curve["accuracy"], yerr=spread, color=colour, label=name, **style
        )


def _name_lengths(axes: Axes, curves: Mapping[str, pd.DataFrame]) -> None:
    """Write the lengths of the first curve below it, those of the others above, where lines that
    rise leave room."""
    style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8}
    for number, curve in enumerate(curves.values()):
        colour = COLOURS[number % len(COLOURS)]
        offset = (-5, 6) if number else (5, -11)
        side = "right" if number else "left"
        for point in curve.itertuples():
            at = (point.cost, point.accuracy)
            text = f"{point.length:g}×"
            axes.annotate(text, at, xytext=offset, ha=side, color=colour, **style)


def _prefixed(flops: float) -> str:
    return format_flops(flops).removesuffix("FLOP")


def _set_log_ticks(axes: Axes, tick: Any, unit: float) -> None:
    """A logarithmic axis, on which lengths that double are evenly spaced, with round numbers of a
    unit."""
    from matplotlib.ticker import FixedLocator, NullLocator

    axes.set_xscale("log")
    axes.margins(x=0.22)
    low, high = axes.get_xlim()
    rounds = unit * np.outer(10.0 ** np.arange(-3, 25), (1, 2, 5)).ravel()
    axes.xaxis.set_major_locator(FixedLocator(rounds[(rounds >= low) & (rounds <= high)].tolist()))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: tick(value))
