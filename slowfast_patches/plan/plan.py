"""What will be trained, before training it: the phases of a schedule and its cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from multigrid.cost import (
    Cost,
    FlopsPerClip,
    baseline_cost,
    phase_flops,
    phase_seconds,
    schedule_cost,
)
from multigrid.schedule import Phase, Schedule
from multigrid.shapes import Shape
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import schedule_of
from slowfast_patches.datasets.lists.dataset_lists import count_list
from slowfast_patches.models.flops import check_shapes, flops_per_clip
from slowfast_patches.plan.timing import UNTIMED, Timing
from slowfast_patches.utils.report import (
    format_count,
    format_duration,
    format_factor,
    format_flops,
    format_table,
)

__all__ = [
    "MIN_PHASE_ITERATIONS",
    "PhasePlan",
    "Plan",
    "dataset_size",
    "format_plan",
    "make_plan",
    "plan_config",
    "short_phases",
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
    them, in clips, None where BN is left to the batch. `seconds` are None where the speed of the
    machine is not known.
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
    seconds: float | None = None

    @property
    def base_shape(self) -> Shape:
        return self.shapes[-1]


@dataclass(frozen=True)
class Plan:
    """A training and what it costs beside the same recipe without multigrid.

    `seconds_source` says where the seconds come from, None where there are none: they are those of
    training, without loading and evaluation.
    """

    base: Shape
    num_videos: int
    phases: tuple[PhasePlan, ...]
    cost: Cost
    baseline: Cost
    seconds_source: str | None = None

    @property
    def speed_up(self) -> float | None:
        """The baseline's seconds as a multiple of ours."""
        ours, baseline = self.cost.seconds, self.baseline.seconds
        return None if ours is None or baseline is None else baseline / ours

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
        return short_phases(self.base, self.phases)

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data. FLOPs are those of training: forward and backward; times are null
        where the speed of the machine is not known."""
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
            "hours": _hours(self.cost),
            "baseline_hours": _hours(self.baseline),
            "speed_up": self.speed_up,
            "seconds_source": self.seconds_source,
            "global_batch": self.base.batch,
            "base_shape": asdict(self.base),
            "num_videos": self.num_videos,
            "min_phase_iterations": MIN_PHASE_ITERATIONS,
            "warnings": list(self.warnings),
            "phases": [{**asdict(p), "base_shape": asdict(p.base_shape)} for p in self.phases],
        }


def dataset_size(recipe: Recipe, given: int | None = None) -> int:
    """Training videos: the number given, else the list's, else DATA.NUM_TRAIN_VIDEOS.

    Raises:
        ValueError: none of them is there, or the list is none.
    """
    if given is not None:
        return given
    counted = count_list(recipe, "train")
    size = recipe.data.num_train_videos if counted is None else counted
    if size < 1:
        raise ValueError(
            "how many training videos are there? DATA.PATH_TO_DATA_DIR "
            f"('{recipe.data.path_to_data_dir}') holds no list of them; set it to the folder "
            f"that has "
            "one, or to plan without one give --dataset-size N or DATA.NUM_TRAIN_VIDEOS N"
        )
    return int(size)


def short_phases(base: Shape, phases: Sequence[Phase | PhasePlan]) -> tuple[str, ...]:
    """A warning where phases are too short for multigrid to pay; empty for a baseline."""
    if all(shape == base for phase in phases for shape in phase.shapes):
        return ()
    number, shortest = min(enumerate(phases, start=1), key=lambda pair: pair[1].iterations)
    if shortest.iterations >= MIN_PHASE_ITERATIONS:
        return ()
    return (
        f"phase {number} ({shortest.base_shape}) has {shortest.iterations} "
        f"iterations; with fewer than {MIN_PHASE_ITERATIONS} in its shortest phase, multigrid "
        "is expected to end below the baseline. More epochs, a larger training set or a "
        "smaller batch make the phases longer",
    )


def plan_config(
    recipe: Recipe, num_videos: int | None = None, timing: Timing = UNTIMED
) -> tuple[Schedule, Plan]:
    """The schedule and plan of a config; `num_videos` as for `dataset_size`.

    Raises:
        ValueError: no size is known, or the recipe or its model cannot train on that schedule.
    """
    schedule = schedule_of(recipe, dataset_size(recipe, num_videos))
    check_shapes(recipe, schedule.shapes)
    return schedule, make_plan(schedule, flops_per_clip(recipe), timing)


def make_plan(schedule: Schedule, flops_per_clip: FlopsPerClip, timing: Timing = UNTIMED) -> Plan:
    """The plan of a schedule; `flops_per_clip` gives training FLOPs for (frames, crop)."""
    return Plan(
        base=schedule.base,
        num_videos=schedule.num_videos,
        phases=tuple(
            _plan_phase(schedule, number, phase, flops_per_clip, timing)
            for number, phase in enumerate(schedule.phases, start=1)
        ),
        cost=schedule_cost(schedule, flops_per_clip, timing.ours),
        baseline=baseline_cost(schedule, flops_per_clip, timing.baseline),
        seconds_source=timing.source,
    )


def _plan_phase(
    schedule: Schedule,
    number: int,
    phase: Phase,
    flops_per_clip: FlopsPerClip,
    timing: Timing,
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
        seconds=None if timing.ours is None else phase_seconds(phase, timing.ours),
    )


def format_plan(plan: Plan) -> str:
    """The plan as text: its phases, its totals beside the baseline's, and what to know."""
    headers = ["phase", "LR stage", "base shape", "short cycle"]
    headers += ["iterations", "epochs", "LR", "BN clips"]
    headers += [] if plan.seconds_source is None else ["time"]
    phases = format_table(headers, [_phase_cells(phase) for phase in plan.phases], left=4)
    ours, baseline = plan.cost, plan.baseline
    totals = [
        ("iterations", ours.iterations, baseline.iterations, format_count),
        ("epochs", ours.epochs, baseline.epochs, format_count),
        ("clips", ours.clips, baseline.clips, format_count),
        ("training FLOPs", _flops(ours), _flops(baseline), format_flops),
    ]
    if ours.seconds is not None and baseline.seconds is not None:
        totals.append(("time", ours.seconds, baseline.seconds, format_duration))
    rows = [[name, show(a), show(b), format_factor(a, b)] for name, a, b, show in totals]
    notes = [
        "Shapes are clips × frames × crop², over all machines; the BN clips are in their order.",
        f"Global batch: {plan.base.batch} clips at the baseline's shape. TRAIN.BATCH_SIZE is per "
        "machine: the global batch is NUM_SHARDS times that, and the LR belongs to it.",
        f"Training set: {plan.num_videos:,} videos.",
    ]
    if plan.speed_up is not None:
        notes.append(
            f"Wall-clock speed-up: {plan.speed_up:.2f}×, without loading and evaluation. Times: "
            f"{plan.seconds_source}."
        )
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
        *([] if phase.seconds is None else [format_duration(phase.seconds)]),
    ]


def _flops(cost: Cost) -> float:
    assert cost.flops is not None, "a plan is made with the model's FLOPs"
    return cost.flops


def _hours(cost: Cost) -> float | None:
    return None if cost.seconds is None else cost.seconds / 3600
