"""The picture of a plan: shapes and learning rate over the iterations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from multigrid import LearningRate, Schedule
from slowfast_patches.utils.pictures import COLOURS, MUTED, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_plan"]


def plot_plan(schedule: Schedule, baseline: LearningRate, path: Path) -> None:
    """The paper's Figure 2 for a schedule: shapes and learning rate over iterations.

    `baseline` is the policy of the same recipe without multigrid, drawn over the same width.
    """
    figure, panels = new_figure(rows=4, width=9, height=7.5, ratios=[1.3, 0.9, 1.1, 1.2])
    for axes, (label, side) in zip(panels, _SHAPE_PANELS, strict=False):
        _draw_shapes(axes, schedule, label, side)
    panels[0].set_yscale("log", base=2)
    panels[0].yaxis.set_major_formatter("{x:,.0f}")
    _draw_learning_rate(panels[-1], schedule, baseline)
    for axes in panels:
        _mark_boundaries(axes, schedule)
        axes.set_xlim(0, schedule.iterations)
    _name_stages(panels[0], schedule)
    legends = [axes.get_legend_handles_labels() for axes in panels]
    handles = {name: handle for pair in legends for handle, name in zip(*pair, strict=True)}
    figure.legend(handles.values(), handles, loc="outside upper center", ncols=4, frameon=False)
    whole = f"{schedule.baseline_iterations:,}"
    panels[-1].set_xlabel(f"iteration (the baseline's {whole} are drawn over the same width)")
    panels[-1].xaxis.set_major_formatter("{x:,.0f}")
    save_figure(figure, path)


_SHAPE_PANELS = (
    ("clips per\nmini-batch", "batch"),
    ("frames", "frames"),
    ("crop (pixels)", "crop"),
)
_BASELINE = "baseline"


def _draw_shapes(axes: Axes, schedule: Schedule, label: str, side: str) -> None:
    """One side of the shapes: a line for the long cycle, a band with marks for the short one."""
    base = getattr(schedule.base, side)
    phases = schedule.phases
    ticks = set[int]()
    for phase in phases:
        sides = {getattr(shape, side) for shape in phase.shapes}
        ticks |= sides
        if len(sides) > 1:
            span = (phase.start, phase.stop)
            axes.fill_between(span, min(sides), max(sides), color=COLOURS[0], alpha=0.12, lw=0)
            axes.hlines(sorted(sides), *span, color=COLOURS[0], lw=0.9, label="short cycle")
    axes.axhline(base, color=MUTED, lw=1.2, ls="--", zorder=1, label=_BASELINE)
    own = [getattr(phase.base_shape, side) for phase in phases]
    edges = [*(phase.start for phase in phases), schedule.iterations]
    name = "long cycle" if any(p.base_shape != schedule.base for p in phases) else "shape"
    axes.stairs(own, edges, baseline=None, color=COLOURS[1], lw=2.2, label=name, zorder=3)
    axes.set_ylabel(label)
    axes.set_yticks(sorted(ticks | {base}), [f"{tick:,}" for tick in sorted(ticks | {base})])
    axes.minorticks_off()


def _draw_learning_rate(axes: Axes, schedule: Schedule, baseline: LearningRate) -> None:
    """The learning rate on a logarithmic axis, with the baseline's at the same share of its own
    training, whose last drop comes earlier."""
    points = [np.linspace(p.start, p.stop - 1, 60).astype(np.int64) for p in schedule.phases]
    iterations = np.unique(np.concatenate(points))
    rates = np.array([schedule.at(int(i)).lr for i in iterations])
    shares = np.linspace(0, 1, 2000, endpoint=False)
    unscaled = np.array([baseline.at(share * baseline.epochs) for share in shares])
    drawn = shares * schedule.iterations
    axes.plot(drawn, unscaled, color=MUTED, lw=1.2, ls="--", label=_BASELINE)
    axes.plot(iterations, rates, color=COLOURS[2], lw=2, label="learning rate")
    positive = unscaled[unscaled > 0]
    if positive.size:
        # A cosine ends at 0 and a warm-up may start there: show four decades, not all.
        low = max(positive.min(), 1e-4 * rates.max())
        axes.set_yscale("log")
        axes.set_ylim(low / 1.6, rates.max() * 1.6)
    axes.set_ylabel("learning rate")


def _mark_boundaries(axes: Axes, schedule: Schedule) -> None:
    for before, after in zip(schedule.phases, schedule.phases[1:], strict=False):
        width, style = (0.9, "-") if before.stage != after.stage else (0.6, ":")
        axes.axvline(after.start, color=MUTED, lw=width, ls=style, zorder=0)


def _name_stages(axes: Axes, schedule: Schedule) -> None:
    """Write the LR stages above a panel, centred over their phases."""
    above = axes.get_xaxis_transform()
    for stage in dict.fromkeys(phase.stage for phase in schedule.phases):
        phases = [phase for phase in schedule.phases if phase.stage == stage]
        name = "fine-tuning" if phases[0].fine_tuning else f"LR stage {stage + 1}"
        middle = (phases[0].start + phases[-1].stop) / 2
        style = {"ha": "center", "va": "bottom", "color": MUTED, "fontsize": 9}
        axes.text(middle, 1.02, name, fontdict=style, transform=above)
