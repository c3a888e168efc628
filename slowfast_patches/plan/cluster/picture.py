"""The picture of a cluster plan: time and efficiency over the number of GPUs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slowfast_patches.plan.cluster.plan import ClusterPlan, Estimate
from slowfast_patches.plan.cluster.times import TrainingTimes
from slowfast_patches.utils.plots import COLOURS, MUTED, new_figure, save_figure
from slowfast_patches.utils.report import format_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_cluster_plan"]


def plot_cluster_plan(plan: ClusterPlan, path: Path) -> None:
    """Hours of the recipe and of its baseline, and their efficiency, from 1 GPU to the most.

    Raises:
        ValueError: a suffix that names no picture format.
    """
    estimates = [row.estimate for row in plan.rows if row.estimate is not None]
    figure, (hours, efficiency) = new_figure(rows=2, width=8, height=7, ratios=[1.5, 1])
    if plan.multigrid:
        baseline = [estimate.baseline for estimate in estimates]
        _draw(hours, efficiency, estimates, baseline, "baseline", COLOURS[0])
    ours = [estimate.ours for estimate in estimates]
    name = "multigrid" if plan.multigrid else "this recipe"
    _draw(hours, efficiency, estimates, ours, name, COLOURS[1])
    hours.set_yscale("log")
    hours.yaxis.set_major_formatter(lambda value, _: format_duration(3600 * value))
    hours.set_ylabel("time of training")
    efficiency.set_ylabel("efficiency\n(compute's share of the time)")
    efficiency.set_ylim(0, 105)
    efficiency.yaxis.set_major_formatter("{x:.0f} %")
    counts = [estimate.cluster.gpus for estimate in estimates]
    efficiency.set_xscale("log", base=2)
    efficiency.set_xticks(counts, [f"{count:,}" for count in counts], rotation=45)
    efficiency.minorticks_off()
    cluster = plan.estimate.cluster
    speed = "" if math.isinf(cluster.network) else f", {cluster.network / 1e9:g} GB/s a node"
    efficiency.set_xlabel(f"GPUs ({cluster.gpus_per_node} a node{speed})")
    for axes in (hours, efficiency):
        axes.axvline(cluster.gpus, color=MUTED, lw=0.8, ls=":", zorder=0)
    handles, labels = hours.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
    save_figure(figure, path)


def _draw(
    hours: Axes,
    efficiency: Axes,
    estimates: Sequence[Estimate],
    trainings: Sequence[TrainingTimes],
    name: str,
    colour: str,
) -> None:
    """One training at each number of GPUs; dashed, what its computing alone would take."""
    counts = [estimate.cluster.gpus for estimate in estimates]
    totals = [training.total for training in trainings]
    took = [times.seconds / 3600 for times in totals]
    hours.plot(counts, took, color=colour, lw=2, marker="o", ms=4, label=name)
    hours.plot(
        counts,
        [times.compute / 3600 for times in totals],
        color=colour,
        lw=1.1,
        ls="--",
        label=f"{name}, compute alone",
    )
    shares = [100 * times.efficiency for times in totals]
    efficiency.plot(counts, shares, color=colour, lw=2, marker="o", ms=4)
