"""Plot of a schedule: shapes and learning rate over the iterations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from multigrid import LearningRate, Schedule
from slowfast_patches.utils.pictures import COLOURS, MUTED, add_legend, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANELS = {"clips per\nmini-batch": "batch", "frames": "frames", "crop (pixels)": "crop"}
_SIZE: dict[str, Any] = {"rows": 4, "width": 9, "height": 8, "ratios": [1.3, 0.9, 1.1, 1.2]}
_SHORT: dict[str, Any] = {"color": COLOURS[0], "lw": 0.9}
_LONG: dict[str, Any] = {"color": COLOURS[1], "lw": 2.2, "zorder": 3}
_RATE: dict[str, Any] = {"color": COLOURS[2], "lw": 2}
_BASELINE: dict[str, Any] = {"color": MUTED, "lw": 1.2, "ls": "--", "zorder": 1}
_BORDER: dict[str, Any] = {"color": MUTED, "lw": 0.6, "ls": ":", "zorder": 0}
_STAGE: dict[str, Any] = {"color": MUTED, "fontsize": 9}
_TITLE: dict[str, Any] = {"fontsize": 11}
_ABOVE = 1.02
"""Height of the names of stages, in heights of a panel."""


def plot_plan(schedule: Schedule, baseline: LearningRate, path: Path) -> None:
    """Plot shapes and learning rate over the iterations, as in Figure 2 of the paper.

    Args:
        schedule: The schedule to plot.
        baseline: Learning-rate policy of the same recipe without multigrid. The curve is stretched
            to the number of iterations of `schedule`.
        path: The image file to write.
    """
    figure, panels = new_figure(**_SIZE)
    panels[0].set_yscale("log", base=2)  # A change of the scale would reset the ticks.
    for axes, (label, side) in zip(panels, _PANELS.items(), strict=False):
        _draw_shapes(axes, schedule, side)
        axes.set_ylabel(label)
    _draw_learning_rate(panels[-1], schedule, baseline)
    for axes in panels:
        for phase in schedule.phases:
            axes.axvline(phase.start, **_BORDER)
    above = panels[0].get_xaxis_transform()
    for stage, phase in {phase.stage: phase for phase in reversed(schedule.phases)}.items():
        name = "fine-tuning" if phase.fine_tuning else f"LR stage {stage + 1}"
        panels[0].text(phase.start, _ABOVE, name, transform=above, **_STAGE)
    add_legend(figure, panels[0], "", 3)
    epochs = schedule.clips / schedule.num_videos
    figure.suptitle(f"{schedule.iterations:,} iterations, {epochs:.1f} epochs", **_TITLE)
    whole = f"{schedule.baseline_iterations:,}"
    panels[-1].set_xlabel(f"iteration (the baseline's {whole} are drawn over the same width)")
    panels[-1].set_xlim(0, schedule.iterations)
    save_figure(figure, path)


def _draw_shapes(axes: Axes, schedule: Schedule, side: str) -> None:
    """Plot one dimension of the shapes, with thick lines for the long cycle and thin for the short.

    Args:
        axes: The axes to plot on.
        schedule: The schedule.
        side: Dimension of the shapes: "batch", "frames" or "crop".
    """
    base = getattr(schedule.base, side)
    phases = schedule.phases
    short = {(getattr(s, side), p.start, p.stop) for p in phases for s in p.shapes[:-1]}
    if short:
        lines = zip(*sorted(short), strict=True)
        axes.hlines(*lines, label="short cycle", **_SHORT)
    axes.axhline(base, label="baseline", **_BASELINE)
    long = [getattr(phase.base_shape, side) for phase in phases]
    edges = [*(phase.start for phase in phases), schedule.iterations]
    name = "long cycle" if schedule.cycles else "this recipe"
    axes.stairs(long, edges, baseline=None, label=name, **_LONG)
    ticks = sorted({base, *long, *(value for value, *_ in short)})
    axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()


def _draw_learning_rate(axes: Axes, schedule: Schedule, baseline: LearningRate) -> None:
    """Plot the learning rates of the schedule and the baseline on a logarithmic axis."""
    shares = np.linspace(0, 1, 2000, endpoint=False)
    iterations = shares * schedule.iterations
    unscaled = [baseline.at(share * baseline.stage_ends[-1]) for share in shares]
    rates = [schedule.at(int(iteration)).lr for iteration in iterations]
    axes.plot(iterations, unscaled, **_BASELINE)
    axes.plot(iterations, rates, **_RATE)
    axes.set_ylabel("learning rate")
    # Limit the axis to four decades, because a cosine ends at 0 and a warm-up may start at 0.
    axes.set_yscale("log")
    axes.set_ylim(bottom=1e-4 * max(rates))
