"""Figures 1 and 3 redrawn: accuracy against training time, published and measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from slowfast_patches.study.reproduction.experiment import Row
from slowfast_patches.study.reproduction.outcome import TOY_MARK, Outcome
from slowfast_patches.utils.plots import COLOURS, MUTED, add_legend, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_outcome"]


def plot_outcome(outcome: Outcome, path: Path) -> None:
    """Draw each curve of a figure over training time relative to the baseline's.

    Measured points are filled and joined; published ones are hollow, at the time that their
    published speed-up says.
    """
    figure, [axes] = new_figure(rows=1, width=8.5, height=5.5)
    curves = list(dict.fromkeys(row.curve for row in outcome.experiment.rows))
    for number, curve in enumerate(curves):
        rows = [row for row in outcome.experiment.rows if row.curve == curve]
        _draw_curve(axes, outcome, curve, rows, COLOURS[number % len(COLOURS)])
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda time, _: f"{time:g}" if time >= 1 else f"1/{1 / time:g}")
    axes.set_xlabel("training time, relative to the baseline's (loading included)")
    axes.set_ylabel("top-1 accuracy (%)")
    ours = "toy" if outcome.toy else "measured"
    add_legend(figure, axes, f"●: {ours}, ○: published")
    title = outcome.experiment.title + (f"\n{TOY_MARK}" if outcome.toy else "")
    axes.set_title(title, fontsize=10)
    if not any(measured.speed_up for measured in outcome.rows.values()):
        axes.text(
            *(0.5, 0.5, "no finished runs yet"),
            transform=axes.transAxes,
            ha="center",
            color=MUTED,
            fontsize=12,
        )
    save_figure(figure, path)


def _draw_curve(axes: Axes, outcome: Outcome, curve: str, rows: list[Row], colour: str) -> None:
    points = []
    for row in rows:
        measured = outcome.rows[row]
        if measured.speed_up and (top1 := measured.metrics.get("top1")):
            points.append((1 / measured.speed_up.mean, top1.mean, top1.std or 0.0))
    label = curve if points else f"{curve} (missing)"
    x, y, spread = zip(*sorted(points), strict=True) if points else ([], [], [])
    axes.errorbar(x, y, yerr=spread, color=colour, marker="o", capsize=3, label=label)
    for row in rows:
        if top1 := row.published.metrics.get("top1"):
            time = 1 / (row.published.speed_up or 1.0)
            axes.plot(time, top1.mean, "o", mfc="none", mec=colour, ms=10, mew=1.8, zorder=5)
