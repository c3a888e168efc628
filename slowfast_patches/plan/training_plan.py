"""Plan of a training: the phases of the schedule and the cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any

from multigrid.cost import (
    Cost,
    FlopsPerClip,
    baseline_cost,
    cycle_advice,
    fine_tuning_warnings,
    iteration_flops,
    schedule_cost,
)
from multigrid.schedule import Schedule
from multigrid.shapes import Shape
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.recipe_cycles import check_world_size
from slowfast_patches.datasets.lists.dataset_lists import count_list
from slowfast_patches.plan.evaluations import evaluation_share
from slowfast_patches.plan.flops import check_shapes, flops_per_clip
from slowfast_patches.plan.recipe_schedule import schedule_of
from slowfast_patches.plan.recipe_times import UNTIMED, RecipeTimes
from slowfast_patches.seams import length_advice
from slowfast_patches.utils.clock import format_duration
from slowfast_patches.utils.errors import UserError
from slowfast_patches.utils.tables import (
    format_count,
    format_flops,
    format_table,
)

_USE = "_BASE_: [RECIPE.yaml, configs/Cycles/{name}.yaml]"
"""Line of YAML that replaces the cycles of RECIPE.yaml by the cycles of configs/Cycles."""


@dataclass(frozen=True)
class Plan:
    """Schedule of a training, its cost, and the cost of the same recipe without multigrid.

    Attributes:
        schedule: The schedule.
        flops_per_clip: Function from (frames, crop) to the training FLOPs of one clip.
        times: Seconds per iteration, or `UNTIMED` if they are unknown.
        evaluations: Result of `evaluation_share`.
    """

    schedule: Schedule
    flops_per_clip: FlopsPerClip
    times: RecipeTimes = UNTIMED
    evaluations: tuple[int, float] = (0, 0.0)

    @cached_property
    def cost(self) -> Cost:
        """Cost of the training. The seconds exclude data loading and evaluation."""
        return schedule_cost(self.schedule, self.flops_per_clip, self.times.ours)

    @cached_property
    def baseline(self) -> Cost:
        """Cost of training the baseline."""
        return baseline_cost(self.schedule, self.flops_per_clip, self.times.baseline)

    @property
    def speed_up(self) -> float | None:
        """Seconds of the baseline divided by seconds of the schedule. None without step times."""
        ours = self.cost.seconds
        baseline = self.baseline.seconds
        return baseline / ours if ours and baseline else None

    @cached_property
    def phases(self) -> list[dict[str, Any]]:
        """Plain data of each phase."""
        schedule = self.schedule
        flops = partial(iteration_flops, flops_per_clip=self.flops_per_clip)
        return [
            {
                "number": number,
                "stage": phase.stage + 1,
                "fine_tuning": phase.fine_tuning,
                "shapes": [asdict(shape) for shape in phase.shapes],
                "start": phase.start,
                **asdict(schedule_cost(schedule, self.flops_per_clip, self.times.ours, [phase])),
                "relative_flops": [flops(shape) / flops(schedule.base) for shape in phase.shapes],
                "lr": (schedule.at(phase.start).lr, schedule.at(phase.stop - 1).lr),
                "bn_group_sizes": phase.bn_group_sizes,
            }
            for number, phase in enumerate(schedule.phases, 1)
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data for JSON.

        FLOPs include the forward and backward pass. Times are None without step times.
        """
        return {
            **asdict(self.cost),
            "baseline": asdict(self.baseline),
            "iteration_factor": self.baseline.iterations / self.cost.iterations,
            "speed_up": self.speed_up,
            "seconds_source": self.times.source,
            "base_shape": asdict(self.schedule.base),
            "num_videos": self.schedule.num_videos,
            "evaluations": self.evaluations[0],
            "evaluation_share": self.evaluations[1],
            "warnings": plan_warnings(self.schedule),
            "phases": self.phases,
        }


def dataset_size(recipe: Recipe, given: int | None = None) -> int:
    """Return the number of training videos.

    Args:
        recipe: The recipe.
        given: The number to return. If it is None, count the videos in the training list, or take
            DATA.NUM_TRAIN_VIDEOS if there is no list.

    Raises:
        ValueError: The number is unknown, or the list is invalid.
    """
    if given is not None:
        return given
    counted = count_list(recipe, "train")
    size = recipe.data.num_train_videos if counted is None else counted
    if size < 1:
        raise UserError(
            f"DATA.PATH_TO_DATA_DIR '{recipe.data.path_to_data_dir}' has no list of training "
            "videos. Change DATA.PATH_TO_DATA_DIR, or give --dataset-size N or "
            "DATA.NUM_TRAIN_VIDEOS N."
        )
    return int(size)


def plan_of(recipe: Recipe, num_videos: int | None = None, times: RecipeTimes = UNTIMED) -> Plan:
    """Return the plan of a recipe, and check that its model and processes can train the schedule.

    Args:
        recipe: The recipe.
        num_videos: Number of training videos, or None to call `dataset_size`.
        times: Seconds per iteration.

    Raises:
        ValueError: The number of videos is unknown. Or the model does not accept a shape of the
            schedule, or a mini-batch cannot be split over the processes.
    """
    schedule = schedule_of(recipe, dataset_size(recipe, num_videos))
    check_shapes(recipe, schedule.shapes)
    check_world_size(recipe, schedule)
    flops = flops_per_clip(recipe)
    return Plan(schedule, flops, times, evaluation_share(recipe, schedule, flops))


def plan_warnings(schedule: Schedule) -> list[str]:
    """Return warnings: too few final iterations, or cycles that do not suit the length."""
    ends = ["; ".join((text, *length_advice())) for text in fine_tuning_warnings(schedule)]
    return [*ends, *cycle_advice(schedule, _USE)]


def plan_summary(plan: Plan) -> str:
    """Return a summary of a plan in a few sentences for the log."""
    schedule = plan.schedule
    beside = f" (the baseline: {plan.baseline.iterations:,})" if schedule.cycles else ""
    return (
        f"The training has {plan.cost.iterations:,} iterations{beside}, or {plan.cost.epochs:.1f} "
        f"epochs of {schedule.num_videos:,} videos. It begins with mini-batches of "
        f"{schedule.phases[0].base_shape} and ends with {schedule.base} (clips × frames × crop²). "
        "plan.txt lists all phases."
    )


_TOTALS = (
    ("iterations", "iterations", format_count),
    ("epochs", "epochs", format_count),
    ("clips", "clips", format_count),
    ("training FLOPs", "flops", format_flops),
    ("time", "seconds", format_duration),
)


def format_plan(plan: Plan) -> str:
    """Return a plan as text: a table of phases, a comparison with the baseline, notes, warnings."""
    schedule = plan.schedule
    headers = ["phase", "LR stage", "shapes"]
    headers += ["iterations", "epochs", "LR", "BN group", "FLOPs", "time"]
    totals = [
        [label, show(ours), show(baseline), f"{baseline / ours:.2f}×"]
        for label, name, show in _TOTALS
        if (ours := getattr(plan.cost, name)) and (baseline := getattr(plan.baseline, name))
    ]
    count, share = plan.evaluations
    notes = [
        "Shapes are clips × frames × crop², over all machines. The short cycle alternates between "
        "the shapes of a phase. BN group sizes and FLOPs are in the order of the shapes. FLOPs are "
        "the FLOPs of an iteration divided by the FLOPs of an iteration of the baseline.",
        f"Global batch: {schedule.base.batch} clips at the baseline's shape. This is "
        "TRAIN.BATCH_SIZE, which is per machine, times NUM_SHARDS. The LR is for the global batch.",
        f"Training set: {schedule.num_videos:,} videos.",
    ]
    if share:
        notes.append(
            f"Evaluations: {count}. Together with the test, they take {100 * share:.0f} % of the "
            "training FLOPs in addition."
        )
    if plan.speed_up is not None:
        notes.append(
            f"Wall-clock speed-up: {plan.speed_up:.2f}×, not counting data loading and evaluation. "
            f"Source of the times: {plan.times.source}."
        )
    tables = [format_table(headers, [_cells(row) for row in plan.phases], left=3)]
    tables += [format_table(["", "this plan", "baseline", "factor"], totals)]
    warnings = [f"warning: {text}" for text in plan_warnings(schedule)]
    return "\n\n".join([*tables, "\n".join(notes), *warnings])


def _cells(phase: Mapping[str, Any]) -> list[str]:
    sizes = ["batch" if size is None else str(size) for size in phase["bn_group_sizes"]]
    return [
        str(phase["number"]),
        f"{phase['stage']}{' fine-tuning' * phase['fine_tuning']}",
        "  ".join(str(Shape(**shape)) for shape in phase["shapes"]),
        format_count(phase["iterations"]),
        f"{phase['epochs']:.2f}",
        " → ".join(dict.fromkeys(f"{lr:.4g}" for lr in phase["lr"])),
        ", ".join(sizes),
        ", ".join(f"{share:.2f}" for share in phase["relative_flops"]),
        "–" if phase["seconds"] is None else format_duration(phase["seconds"]),
    ]
