"""The picture of a cluster plan: time and efficiency over the number of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slowfast_patches.utils.pictures import COLOURS, MUTED, new_figure, save_figure
from slowfast_patches.utils.tables import format_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_cluster_plan"]


def plot_cluster_plan(plan: Mapping[str, Any], path: Path) -> None:
    """Hours of the recipe and of its baseline, and their efficiency, from 1 GPU to the most.

    Raises:
        ValueError: a suffix that names no picture format.
    """
    rows = {row["gpus"]: row for row in plan["gpu_counts"] if "reason" not in row}
    figure, (hours, efficiency) = new_figure(rows=2, width=8, height=7, ratios=[1.5, 1])
    names = {"plan": "this recipe"}
    if plan["multigrid"]:
        names = {"baseline": "baseline", "plan": "multigrid"}
    for key, name in names.items():
        colour = COLOURS[key == "plan"]
        _draw(hours, efficiency, {gpus: row[key] for gpus, row in rows.items()}, name, colour)
    hours.set_yscale("log")
    hours.yaxis.set_major_formatter(lambda value, _: format_duration(3600 * value))
    hours.set_ylabel("time of training")
    efficiency.set_ylabel("efficiency\n(compute's share of the time)")
    efficiency.set_ylim(0, 105)
    efficiency.yaxis.set_major_formatter("{x:.0f} %")
    efficiency.set_xscale("log", base=2)
    efficiency.set_xticks(list(rows), [f"{gpus:,}" for gpus in rows], rotation=45)
    efficiency.minorticks_off()
    network = plan["network_bytes_per_second"]
    speed = "" if network is None else f", {network / 1e9:g} GB/s a node"
    efficiency.set_xlabel(f"GPUs ({plan['gpus_per_node']} a node{speed})")
    for axes in (hours, efficiency):
        axes.axvline(plan["gpus"], color=MUTED, lw=0.8, ls=":", zorder=0)
    handles, labels = hours.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
    save_figure(figure, path)


def _draw(
    hours: Axes, efficiency: Axes, rows: Mapping[int, Mapping[str, Any]], name: str, colour: str
) -> None:
    """One training by its number of GPUs; dashed, what its computing alone would take."""
    gpus, times = list(rows), list(rows.values())
    took, computed = ([t["hours"] for t in times], [t["compute"] / 3600 for t in times])
    hours.plot(gpus, took, color=colour, lw=2, marker="o", ms=4, label=name)
    hours.plot(gpus, computed, color=colour, lw=1.1, ls="--", label=f"{name}, compute alone")
    shares = [100 * t["efficiency"] for t in times]
    efficiency.plot(gpus, shares, color=colour, lw=2, marker="o", ms=4)
