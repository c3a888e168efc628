"""What will be trained, before training it: the phases of a schedule, its cost, its picture."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fvcore.common.config import CfgNode
from matplotlib.axes import Axes

from multigrid.cost import (
    Cost,
    FlopsPerClip,
    baseline_cost,
    phase_flops,
    schedule_cost,
)
from multigrid.schedule import Phase, Schedule
from multigrid.shapes import Shape
from slowfast_patches.config.schedule import schedule_from_config
from slowfast_patches.datasets.lists import count_list
from slowfast_patches.models.flops import check_shapes, flops_per_clip
from slowfast_patches.utils.plots import COLOURS, MUTED, new_figure, save_figure
from slowfast_patches.utils.report import format_count, format_factor, format_flops, format_table

__all__ = [
    "MIN_PHASE_ITERATIONS",
    "PhasePlan",
    "Plan",
    "dataset_size",
    "format_plan",
    "make_plan",
    "plan_config",
    "plot_plan",
]

MIN_PHASE_ITERATIONS = 20
"""Iterations that the shortest phase of a multigrid training should have.

Measured on the demo, see "Where it does not pay" in the method card: with 19 multigrid ended a
point below the baseline, with 7 it ended 33 points below.
"""


@dataclass(frozen=True)
class PhasePlan:
    """One phase: `number` and `stage` count from 1, `lr` holds its first and last iteration's.

    `shapes` are those of its short cycle in order, the long cycle's own last; `bn_sizes` belong to
    them, in clips, None where BN is left to the batch.
    """

    number: int
    stage: int
    fine_tuning: bool
    shapes: tuple[Shape, ...]
    start: int
    iterations: int
    epochs: float
    clips: int
    flops: float
    lr: tuple[float, float]
    bn_sizes: tuple[int | None, ...]

    @property
    def base_shape(self) -> Shape:
        return self.shapes[-1]


@dataclass(frozen=True)
class Plan:
    """A training and what it costs beside the same recipe without multigrid."""

    base: Shape
    num_videos: int
    phases: tuple[PhasePlan, ...]
    cost: Cost
    baseline: Cost

    @property
    def iteration_factor(self) -> float:
        """The baseline's iterations as a multiple of ours."""
        return self.baseline.iterations / self.cost.iterations

    @property
    def flops_factor(self) -> float:
        """The baseline's training FLOPs as a multiple of ours."""
        return _flops(self.baseline) / _flops(self.cost)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What speaks against this plan; empty if nothing does, and for a baseline."""
        if all(shape == self.base for phase in self.phases for shape in phase.shapes):
            return ()
        shortest = min(self.phases, key=lambda phase: phase.iterations)
        if shortest.iterations >= MIN_PHASE_ITERATIONS:
            return ()
        return (
            f"phase {shortest.number} ({shortest.base_shape}) has {shortest.iterations} "
            f"iterations; with fewer than {MIN_PHASE_ITERATIONS} in its shortest phase, multigrid "
            "is expected to end below the baseline. More epochs, a larger training set or a "
            "smaller batch make the phases longer",
        )

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data. FLOPs are those of training: forward and backward."""
        return {
            "iterations": self.cost.iterations,
            "baseline_iterations": self.baseline.iterations,
            "iteration_factor": self.iteration_factor,
            "epochs": self.cost.epochs,
            "baseline_epochs": self.baseline.epochs,
            "clips": self.cost.clips,
            "baseline_clips": self.baseline.clips,
            "flops": self.cost.flops,
            "baseline_flops": self.baseline.flops,
            "flops_factor": self.flops_factor,
            "global_batch": self.base.batch,
            "base_shape": asdict(self.base),
            "num_videos": self.num_videos,
            "min_phase_iterations": MIN_PHASE_ITERATIONS,
            "warnings": list(self.warnings),
            "phases": [{**asdict(p), "base_shape": asdict(p.base_shape)} for p in self.phases],
        }


def dataset_size(cfg: CfgNode, given: int | None = None) -> int:
    """Training videos: the number given, else the list's, else DATA.NUM_TRAIN_VIDEOS.

    Raises:
        ValueError: none of them is there, or the list is none.
    """
    if given is not None:
        return given
    counted = count_list(cfg, "train")
    size = cfg.DATA.NUM_TRAIN_VIDEOS if counted is None else counted
    if size < 1:
        raise ValueError(
            "how many training videos are there? DATA.PATH_TO_DATA_DIR "
            f"('{cfg.DATA.PATH_TO_DATA_DIR}') holds no list of them; give --dataset-size N (plan) "
            "or DATA.NUM_TRAIN_VIDEOS N"
        )
    return int(size)


def plan_config(cfg: CfgNode, num_videos: int | None = None) -> tuple[Schedule, Plan]:
    """The schedule and plan of a config; `num_videos` as for `dataset_size`.

    Raises:
        ValueError: no size is known, or the recipe or its model cannot train on that schedule.
    """
    schedule = schedule_from_config(cfg, dataset_size(cfg, num_videos))
    check_shapes(cfg, schedule.shapes)
    return schedule, make_plan(schedule, flops_per_clip(cfg))


def make_plan(schedule: Schedule, flops_per_clip: FlopsPerClip) -> Plan:
    """The plan of a schedule; `flops_per_clip` gives training FLOPs for (frames, crop)."""
    return Plan(
        base=schedule.base,
        num_videos=schedule.num_videos,
        phases=tuple(
            _plan_phase(schedule, number, phase, flops_per_clip)
            for number, phase in enumerate(schedule.phases, start=1)
        ),
        cost=schedule_cost(schedule, flops_per_clip),
        baseline=baseline_cost(schedule, flops_per_clip),
    )


def _plan_phase(
    schedule: Schedule, number: int, phase: Phase, flops_per_clip: FlopsPerClip
) -> PhasePlan:
    return PhasePlan(
        number=number,
        stage=phase.stage + 1,
        fine_tuning=phase.fine_tuning,
        shapes=phase.shapes,
        start=phase.start,
        iterations=phase.iterations,
        epochs=phase.clips / schedule.num_videos,
        clips=phase.clips,
        flops=phase_flops(phase, flops_per_clip),
        lr=(schedule.at(phase.start).lr, schedule.at(phase.stop - 1).lr),
        bn_sizes=phase.bn_sizes,
    )


def format_plan(plan: Plan) -> str:
    """The plan as text: its phases, its totals beside the baseline's, and what to know."""
    headers = ["phase", "LR stage", "base shape", "short cycle"]
    headers += ["iterations", "epochs", "LR", "BN clips"]
    phases = format_table(headers, [_phase_cells(phase) for phase in plan.phases], left=4)
    ours, baseline = plan.cost, plan.baseline
    totals = [
        ("iterations", ours.iterations, baseline.iterations, format_count),
        ("epochs", ours.epochs, baseline.epochs, format_count),
        ("clips", ours.clips, baseline.clips, format_count),
        ("training FLOPs", _flops(ours), _flops(baseline), format_flops),
    ]
    rows = [[name, show(a), show(b), format_factor(a, b)] for name, a, b, show in totals]
    notes = [
        "Shapes are clips × frames × crop², over all machines; the BN clips are in their order.",
        f"Global batch: {plan.base.batch} clips at the baseline's shape. TRAIN.BATCH_SIZE is per "
        "machine: the global batch is NUM_SHARDS times that, and the LR belongs to it.",
        f"Training set: {plan.num_videos:,} videos.",
    ]
    parts = [phases, format_table(["", "this plan", "baseline", ""], rows), "\n".join(notes)]
    return "\n\n".join([*parts, *(f"warning: {text}" for text in plan.warnings)])


def _phase_cells(phase: PhasePlan) -> list[str]:
    first, last = (f"{lr:.4g}" for lr in phase.lr)
    sizes = ["batch" if size is None else str(size) for size in phase.bn_sizes]
    return [
        str(phase.number),
        f"{phase.stage} fine-tuning" if phase.fine_tuning else str(phase.stage),
        str(phase.base_shape),
        "  ".join(map(str, phase.shapes)) if len(phase.shapes) > 1 else "–",
        format_count(phase.iterations),
        f"{phase.epochs:.2f}",
        first if first == last else f"{first} → {last}",
        sizes[0] if len(set(sizes)) == 1 else ", ".join(sizes),
    ]


def _flops(cost: Cost) -> float:
    assert cost.flops is not None, "a plan is made with the model's FLOPs"
    return cost.flops


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
