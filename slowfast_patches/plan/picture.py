"""The picture of a plan: shapes and learning rate over the iterations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from multigrid.schedule import Schedule
from slowfast_patches.utils.plots import COLOURS, MUTED, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_plan"]


def plot_plan(schedule: Schedule, path: Path) -> None:
    """The paper's Figure 2 for a schedule: shapes and learning rate over iterations."""
    figure, panels = new_figure(rows=4, width=9, height=7.5, ratios=[1.3, 0.9, 1.1, 1.2])
    for axes, (label, field) in zip(panels, _SHAPE_PANELS, strict=False):
        _draw_shapes(axes, schedule, label, field)
    panels[0].set_yscale("log", base=2)
    panels[0].yaxis.set_major_formatter("{x:,.0f}")
    _draw_learning_rate(panels[-1], schedule)
    for axes in panels:
        _mark_boundaries(axes, schedule)
        axes.set_xlim(0, schedule.iterations)
    _name_stages(panels[0], schedule)
    handles = {
        label: handle
        for axes in panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, loc="outside upper center", ncols=4, frameon=False)
    panels[-1].set_xlabel(f"iteration (the baseline has {schedule.baseline_iterations:,})")
    panels[-1].xaxis.set_major_formatter("{x:,.0f}")
    save_figure(figure, path)


_SHAPE_PANELS = (
    ("clips per\nmini-batch", "batch"),
    ("frames", "frames"),
    ("crop (pixels)", "crop"),
)


def _draw_shapes(axes: Axes, schedule: Schedule, label: str, field: str) -> None:
    """One side of the shapes: a line for the long cycle, a band with marks for the short one."""
    edges = [phase.start for phase in schedule.phases] + [schedule.iterations]
    own = [getattr(phase.base_shape, field) for phase in schedule.phases]
    name = "long cycle" if any(p.base_shape != schedule.base for p in schedule.phases) else "shape"
    values = [{getattr(shape, field) for shape in phase.shapes} for phase in schedule.phases]
    for phase, sides in zip(schedule.phases, values, strict=True):
        if len(sides) > 1:
            span = (phase.start, phase.stop)
            axes.fill_between(span, min(sides), max(sides), color=COLOURS[0], alpha=0.12, lw=0)
            axes.hlines(sorted(sides), *span, color=COLOURS[0], lw=0.9, label="short cycle")
    axes.axhline(
        getattr(schedule.base, field),
        color=MUTED,
        lw=1.2,
        ls="--",
        zorder=1,
        label="baseline (LR: unscaled)",
    )
    axes.stairs(own, edges, baseline=None, color=COLOURS[1], lw=2.2, label=name, zorder=3)
    axes.set_ylabel(label)
    ticks = sorted({side for sides in values for side in sides} | {getattr(schedule.base, field)})
    axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()


def _draw_learning_rate(axes: Axes, schedule: Schedule) -> None:
    """The learning rate on a logarithmic axis, with what the policy gives before scaling."""
    iterations = np.unique(
        np.concatenate(
            [np.linspace(p.start, p.stop - 1, 60).astype(np.int64) for p in schedule.phases]
        )
    )
    steps = [schedule.at(int(i)) for i in iterations]
    scales = np.array([schedule.phases[step.phase].lr_scale for step in steps])
    rates = np.array([step.lr for step in steps])
    axes.plot(
        iterations, rates / scales, color=MUTED, lw=1.2, ls="--", label="baseline (LR: unscaled)"
    )
    axes.plot(iterations, rates, color=COLOURS[2], lw=2, label="learning rate")
    positive = (rates / scales)[rates > 0]
    if positive.size:
        # A cosine ends at 0 and a warm-up may start there: show four decades, not all.
        low = max(positive.min(), 1e-4 * rates.max())
        axes.set_yscale("log")
        axes.set_ylim(low / 1.6, rates.max() * 1.6)
    axes.set_ylabel("learning rate")


def _mark_boundaries(axes: Axes, schedule: Schedule) -> None:
    for before, after in zip(schedule.phases, schedule.phases[1:], strict=False):
        new_stage = before.stage != after.stage
        axes.axvline(
            after.start,
            color=MUTED,
            lw=0.9 if new_stage else 0.6,
            ls="-" if new_stage else ":",
            zorder=0,
        )


def _name_stages(axes: Axes, schedule: Schedule) -> None:
    """Write the LR stages above a panel, centred over their phases."""
    for stage in dict.fromkeys(phase.stage for phase in schedule.phases):
        phases = [phase for phase in schedule.phases if phase.stage == stage]
        name = "fine-tuning" if phases[0].fine_tuning else f"LR stage {stage + 1}"
        middle = (phases[0].start + phases[-1].stop) / 2
        axes.text(
            middle,
            1.02,
            name,
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="bottom",
            color=MUTED,
            fontsize=9,
        )
