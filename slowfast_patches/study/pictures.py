"""Accuracy against training time: of a comparison's runs, and of the paper's figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slowfast_patches.study.report import Measured
from slowfast_patches.study.runs import working_seconds
from slowfast_patches.utils import pictures
from slowfast_patches.utils.pictures import COLOURS, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["LONG_TITLES", "Point", "plot_curves", "plot_trainings"]

LONG_TITLES = {"top1": "top-1 accuracy", "map": "mean average precision"}
"""Primary metrics, where there is room."""


_MARKERS = ("o", "s", "^")
"""One after another, where there are more lines than colours."""


def plot_trainings(rows: Sequence[Measured], metric: str, path: Path) -> None:
    """A metric against training time while the runs trained, as in the paper's Figure 1."""
    figure, [axes] = new_figure(rows=1, width=8, height=5)
    runs = [run for row in rows for run in row.runs.values()]
    unit, size = pictures.time_unit(max(map(working_seconds, runs), default=0.0))
    for number, row in enumerate(rows):
        if row.runs:
            marker = _MARKERS[number // len(COLOURS) % len(_MARKERS)]
            _draw_training(axes, row, metric, COLOURS[number % len(COLOURS)], marker, size)
    axes.set_xlabel(f"training time, loading included ({unit})")
    axes.set_ylabel(f"{LONG_TITLES[metric]} (%)")
    axes.set_xlim(left=0)
    if runs:
        pictures.add_legend(figure, axes, "lines: validation, marks: final results")
    save_figure(figure, path)


def _draw_training(
    axes: Axes, row: Measured, metric: str, colour: str, marker: str, size: float
) -> None:
    """An arm: a thin line for each seed, a thick one for their mean, a mark where they end."""
    mean, seconds = row.metric(metric), row.mean(working_seconds)
    assert mean is not None, "drawn only with a finished run"
    assert seconds is not None, "drawn only with a finished run"
    curves = [
        np.array([(point["seconds"] / size, point[metric]) for point in run["evaluations"]])
        for run in row.runs.values()
    ]
    several = len(curves) > 1 and len({curve.shape for curve in curves}) == 1
    for curve in curves:
        axes.plot(*curve.T, color=colour, lw=0.8 if several else 2, alpha=0.35 if several else 1)
    if several:
        axes.plot(*np.mean(curves, axis=0).T, color=colour, lw=2.2)
    label = f"{row.arm.name}: {mean.format()} %"
    if row.speed_up and f"{row.speed_up.mean:.2f}" != "1.00":
        label += f", {row.speed_up.mean:.1f}× the speed"
    style: dict[str, Any] = {"fmt": marker, "ms": 8, "capsize": 4, "mec": "white", "zorder": 4}
    x, y = seconds.mean / size, mean.mean
    axes.errorbar(x, y, yerr=mean.std, color=colour, label=label, **style)


Point = tuple[str, Measured, tuple[float, float] | None]
"""A curve's label, what was measured at a point of it, and what was published as (time, accuracy);
times are relative to the baseline's."""


def plot_curves(points: Sequence[Point], title: str, ours: str, path: Path) -> None:
    """Draw accuracy over training time, the points of a curve being trainings of several lengths.

    Measured points, called `ours`, are filled and joined; published ones are hollow.
    """
    figure, [axes] = new_figure(rows=1, width=8.5, height=5.5)
    for number, label in enumerate(dict.fromkeys(label for label, *_ in points)):
        own = [point for point in points if point[0] == label]
        _draw_curve(axes, label, own, COLOURS[number % len(COLOURS)])
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda time, _: f"{time:g}" if time >= 1 else f"1/{1 / time:g}")
    axes.set_xlabel("training time, relative to the baseline's (loading included)")
    axes.set_ylabel("top-1 accuracy (%)")
    pictures.add_legend(figure, axes, f"●: {ours}, ○: published")
    axes.set_title(title, fontsize=10)
    save_figure(figure, path)


def _draw_curve(axes: Axes, label: str, points: Sequence[Point], colour: str) -> None:
    found = sorted(
        (1 / row.speed_up.mean, top1.mean, top1.std or 0.0)
        for _, row, _ in points
        if row.speed_up and (top1 := row.metric("top1"))
    )
    x, y, spread = zip(*found, strict=True) if found else ([], [], [])
    label = label if found else f"{label} (missing)"
    axes.errorbar(x, y, yerr=spread, color=colour, marker="o", capsize=3, label=label)
    for published in (published for *_, published in points if published):
        axes.plot(*published, "o", mfc="none", mec=colour, ms=10, mew=1.8, zorder=5)
