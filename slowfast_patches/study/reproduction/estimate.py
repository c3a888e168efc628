"""What an experiment would cost, before any of it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from multigrid.cost import FlopsPerClip, schedule_cost
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import schedule_of
from slowfast_patches.models.flops import check_shapes, flops_per_clip
from slowfast_patches.plan.plan import dataset_size
from slowfast_patches.plan.step_times import UNTIMED, MisfitError, Timing
from slowfast_patches.study.reproduction.experiment import Experiment, Row, Training
from slowfast_patches.study.reproduction.recipes import Recipes
from slowfast_patches.study.runs import Arm
from slowfast_patches.utils.report import format_count, format_duration, format_flops, format_table

__all__ = [
    "Estimate",
    "Estimator",
    "TimingOf",
    "format_estimates",
    "total_seconds",
]

TimingOf = Callable[[Recipe, FlopsPerClip], Timing]
"""How long the iterations of a arm take, from its config and its FLOPs of a clip."""


@dataclass(frozen=True)
class Estimate:
    """What one run of a training takes; `seconds` on the machine whose step times are known.

    `factor` is how many times fewer iterations than its baseline's it has; `misfit` says why no
    step times hold for it, where some were given.
    """

    arm: Arm
    iterations: int
    epochs: float
    clips: int
    flops: float
    factor: float
    seconds: float | None
    misfit: str | None

    def to_json(self) -> dict[str, Any]:
        """As plain data, the arm by its file."""
        return {"config": str(self.arm.cfg_file)} | {
            field.name: getattr(self, field.name) for field in fields(self)[1:]
        }


class Estimator:
    """Estimates trainings; models of the same kind are built and counted once."""

    def __init__(self, recipes: Recipes, timing_of: TimingOf) -> None:
        self._recipes, self._timing_of = recipes, timing_of
        self._flops: dict[str, FlopsPerClip] = {}

    def estimate(self, training: Training, baseline: Training) -> Estimate:
        """What a run of a training takes, without loading and evaluation.

        Raises:
            ValueError: the arm cannot be trained.
        """
        arm = self._recipes.recipe(training, baseline)
        reference = self._recipes.recipe(baseline, baseline)
        schedule = schedule_of(arm.recipe, dataset_size(arm.recipe))
        flops = self._flops_per_clip(arm.recipe)
        misfit, timing = None, UNTIMED
        try:
            timing = self._timing_of(arm.recipe, flops)
        except MisfitError as error:
            misfit = str(error)
        try:
            cost = schedule_cost(schedule, flops, timing.ours)
        except RuntimeError:
            check_shapes(arm.recipe, schedule.shapes)  # says which shape does not fit, and why
            raise
        assert cost.flops is not None, "counted with the model's FLOPs"
        return Estimate(
            arm=arm,
            iterations=cost.iterations,
            epochs=cost.epochs,
            clips=cost.clips,
            flops=cost.flops,
            factor=reference.iterations / cost.iterations,
            seconds=cost.seconds,
            misfit=misfit,
        )

    def _flops_per_clip(self, recipe: Recipe) -> FlopsPerClip:
        sections = (
            recipe.model,
            recipe.resnet,
            recipe.slowfast,
            recipe.nonlocal_,
            recipe.detection,
        )
        data = (recipe.data.num_frames, recipe.data.crop_size, recipe.data.input_channel_num)
        kind = repr((*sections, *data))
        if kind not in self._flops:
            self._flops[kind] = flops_per_clip(recipe)
        return self._flops[kind]


def format_estimates(
    experiment: Experiment, estimates: Mapping[Row, Estimate], seeds: Sequence[int]
) -> str:
    """The table of an experiment's runs, for a terminal."""
    headers = ["run", "config", "seeds", "iterations", "epochs", "clips", "training\nFLOPs"]
    headers += ["ratio to\nthe baseline", "time of\na run"]
    rows = [
        [
            row.label,
            _config(estimates[row].arm),
            str(len(seeds)),
            format_count(estimates[row].iterations),
            f"{estimates[row].epochs:.1f}",
            format_count(estimates[row].clips),
            format_flops(estimates[row].flops),
            f"1/{estimates[row].factor:.2f}",
            "?" if (took := estimates[row].seconds) is None else format_duration(took),
        ]
        for row in experiment.rows
    ]
    return f"{experiment.title}\n\n{format_table(headers, rows, left=2)}"


def total_seconds(estimates: Iterable[Estimate], seeds: Sequence[int]) -> float | None:
    """Seconds of all runs one after another, each training counted once; None if not known."""
    times = {estimate.arm.folder: estimate.seconds for estimate in estimates}
    known = [value for value in times.values() if value is not None]
    return len(seeds) * sum(known) if times and len(known) == len(times) else None


def _config(arm: Arm) -> str:
    return "/".join(arm.cfg_file.parts[-2:])
