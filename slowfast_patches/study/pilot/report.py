"""What a pilot measured and what follows from it: one claim, how probable it is, and the report.

The claim is that the best cycle is ahead of the baseline after equal time. Its probability counts
with two errors of each score, that of so many videos and that of a single seed. The latter is large
where a curve is steep, as in the minutes of a pilot (projects/real_video/README.md).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from multigrid import GENTLE, PAPER, Cycles, Schedule, Shape
from multigrid.cost import MIN_FINAL_ITERATIONS
from slowfast_patches.config.metrics import metric_title
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import cycle_keys, schedule_of
from slowfast_patches.study.report import write_report
from slowfast_patches.utils.pictures import COLOURS, new_figure, save_figure
from slowfast_patches.utils.tables import format_duration, format_table

__all__ = [
    "Pilot",
    "PilotArm",
    "Stage",
    "advice_of",
    "format_pilot",
    "pilot_json",
    "recipe_text",
    "write_pilot",
]

_SEEDS = 40.0
"""The standard deviation of a score p over seeds is this many points times p (1 − p): the root mean
square of the twenty lengths of words and digits (projects/real_video/README.md)."""
_PROBABLE = 0.75
"""Probability from which on there is an advice."""
_SUREST = 0.95
"""No probability is above: one seed on one set does not prove more."""


@dataclass(frozen=True)
class Stage:
    """What was trained at one shape: `seconds` with loading; `loss` the mean of the last tenth."""

    shape: Shape
    seconds: float
    iterations: int
    loss: float

    @property
    def clips(self) -> int:
        return self.iterations * self.shape.batch

    @property
    def seconds_per_clip(self) -> float:
        return self.seconds / self.clips


@dataclass(frozen=True)
class PilotArm:
    """The baseline, which has no `cycles`, or one with: the shapes that it trained, and its score
    at the baseline's grid in the end, in per cent."""

    cycles: Cycles | None
    stages: tuple[Stage, ...]
    score: float

    @property
    def name(self) -> str:
        return self.cycles.name if self.cycles else "baseline"

    @property
    def keys(self) -> dict[str, object]:
        return cycle_keys(self.cycles) if self.cycles else {}


@dataclass(frozen=True)
class Pilot:
    """Arms that were trained for equal times, the baseline first, and at least one cycle.

    recipe, schedule: the baseline's, of one process.
    metric: the name of the scores.
    videos: how many were scored; the commonest class has `chance` per cent of them, and 0 where a
        video has several classes.
    processes: how many the baseline asks for.
    baseline_seconds: what the whole baseline takes on them, without evaluation, if that many
        processes are that many times as fast as one.
    first_estimate: the same, by the few steps that were timed first.
    seconds: what the pilot took.
    """

    recipe: Recipe
    schedule: Schedule
    arms: tuple[PilotArm, ...]
    metric: str
    videos: int
    chance: float
    processes: int
    baseline_seconds: float
    first_estimate: float
    seconds: float

    @property
    def best(self) -> PilotArm:
        """The cycle with the highest score."""
        return max(self.arms[1:], key=lambda arm: arm.score)

    @property
    def ahead(self) -> float:
        """The probability that the best cycle is ahead of the baseline after equal time, with other
        videos and seeds. Of several cycles, each had a chance to be the best by luck."""
        baseline = self.arms[0].score
        best = self.best.score
        spread = math.hypot(self.error(baseline), self.error(best))
        ahead = 0.5 * (1 + math.erf((best - baseline) / spread / math.sqrt(2)))
        if ahead > 0.5:
            ahead = max(0.5, 1 - (len(self.arms) - 1) * (1 - ahead))
        return min(max(ahead, 1 - _SUREST), _SUREST)

    @property
    def verdict(self) -> str:
        """ "use multigrid", "do not use multigrid" or "undecided"; against a cycle speaks only one
        that had `MIN_FINAL_ITERATIONS` after its change of shape."""
        if self.ahead >= _PROBABLE:
            return "use multigrid"
        if self.ahead <= 1 - _PROBABLE and self.final_iterations >= MIN_FINAL_ITERATIONS:
            return "do not use multigrid"
        return "undecided"

    @property
    def final_iterations(self) -> int:
        """Iterations of the best cycle at the baseline's shape."""
        return self.best.stages[-1].iterations

    def error(self, score: float) -> float:
        """The standard error of a score in per cent: that of a proportion of the videos, and that
        of a single seed."""
        return math.hypot(*self.errors(score))

    def errors(self, score: float) -> tuple[float, float]:
        """Both parts of the standard error: of so many videos, and of a single seed."""
        part = min(max(score / 100, 1 / self.videos), 1 - 1 / self.videos)
        variance = part * (1 - part)
        return 100 * math.sqrt(variance / self.videos), _SEEDS * variance

    @property
    def speed_up(self) -> float:
        """The baseline's seconds over those of a whole training of the best cycle, by the seconds
        of a clip in the pilot."""
        stages = (*self.best.stages, *self.arms[0].stages)
        per_clip = {stage.shape: stage.seconds_per_clip for stage in stages}
        schedule = schedule_of(self.recipe.replaced(self.best.keys), self.schedule.num_videos)
        seconds = sum(phase.clips * per_clip[phase.base_shape] for phase in schedule.phases)
        return self.schedule.clips * per_clip[self.schedule.base] / seconds


def format_pilot(pilot: Pilot) -> str:
    """The evidence as a table, and what follows from it, for a terminal."""
    return "\n\n".join([_table(pilot), *_notes(pilot), advice_of(pilot)])


def _table(pilot: Pilot, *, markdown: bool = False) -> str:
    headers = ["arm", "clips × frames × pixels", "seconds", "iterations", "clips/s", "loss"]
    headers += [f"{metric_title(pilot.metric)} in the end, %"]
    rows = list[list[str]]()
    for arm in pilot.arms:
        for number, stage in enumerate(arm.stages):
            cells = [arm.name * (number == 0), str(stage.shape), f"{stage.seconds:.1f}"]
            cells += [f"{stage.iterations:,}", f"{1 / stage.seconds_per_clip:.1f}"]
            is_last = number == len(arm.stages) - 1
            score = f"{arm.score:.1f} ± {pilot.error(arm.score):.1f}" if is_last else ""
            rows.append([*cells, f"{stage.loss:.2f}", score])
    return format_table(headers, rows, left=2, markdown=markdown)


def _notes(pilot: Pilot) -> list[str]:
    title = metric_title(pilot.metric)
    chance = f", of which the commonest class has {pilot.chance:.1f} %" if pilot.chance else ""
    several = f" on {pilot.processes} processes" if pilot.processes > 1 else ""
    return [
        f"The {title} is that of {pilot.videos} validation videos{chance}, at the baseline's shape "
        "and of one seed; ± is the standard error that so few videos and a single seed give it. "
        "The loss is the training's, the mean of a shape's last tenth.",
        f"The pilot took {format_duration(pilot.seconds)}; the whole baseline would take "
        f"{format_duration(pilot.baseline_seconds)}{several}, by the "
        f"{pilot.arms[0].stages[0].iterations} iterations of its first row. (The first estimate, "
        f"{format_duration(pilot.first_estimate)}, was by a few steps.)",
    ]


def advice_of(pilot: Pilot) -> str:
    """The verdict, how probable its one claim is, and what to do."""
    name = pilot.best.name
    percent = round(100 * pilot.ahead)
    evidence = f"by these {pilot.videos} videos and one seed"
    if pilot.verdict == "use multigrid":
        factor = pilot.best.cycles.epoch_factor if pilot.best.cycles else 1.0
        return (
            f'Advice: use multigrid ("{name}"). After equal time it is ahead of the baseline with '
            f"a probability of {percent} %, {evidence}. Its whole training takes "
            f"1/{pilot.speed_up:.2f} of the baseline's time, for {factor:g} × the "
            "clips; what both reach, multigrid-compare shows."
        )
    if pilot.verdict == "do not use multigrid":
        return (
            "Advice: do not use multigrid here. After equal time the baseline is ahead of the best "
            f'cycle ("{name}") with a probability of {100 - percent} %, {evidence}.'
        )
    text = (
        f'Undecided: after equal time the best cycle ("{name}") is ahead of the baseline with a '
        f"probability of {percent} %, {evidence}."
    )
    if pilot.final_iterations < MIN_FINAL_ITERATIONS:
        text += (
            f" Only {pilot.final_iterations} iterations followed its last coarse shape; what that "
            f"taught shows after some {MIN_FINAL_ITERATIONS}."
        )
    if 2 * pilot.seconds >= pilot.baseline_seconds:
        return f"{text} To know, train both with multigrid-compare."
    of_videos, of_seed = pilot.errors(pilot.best.score)
    return (
        f"{text} What may tell more: twice the time, --minutes {math.ceil(pilot.seconds / 30)}; "
        f"another seed, RNG_SEED 1 (a single one makes ±{of_seed:.1f} of the best score's "
        f"±{pilot.error(pilot.best.score):.1f}); more validation videos, of which 300 are scored "
        f"at most ({pilot.videos} make ±{of_videos:.1f}); or both trainings, by multigrid-compare."
    )


def recipe_text(cycles: Cycles, base: str) -> str:
    """Return a recipe that gives another one these cycles.

    Args:
        cycles: one of the named ones, or a variation of it.
        base: the path of the other recipe.
    """
    named = PAPER if cycles.batch_exponent == PAPER.batch_exponent else GENTLE
    usual = cycle_keys(named)
    changed = {
        key.removeprefix("MULTIGRID."): value
        for key, value in cycle_keys(cycles).items()
        if value != usual.get(key)
    }
    content: dict[str, object] = {"_BASE_": [base, f"configs/Cycles/{named.name}.yaml"]}
    if changed:
        content["MULTIGRID"] = changed
    return str(yaml.safe_dump(content, default_flow_style=None, sort_keys=False, width=1000))


def pilot_json(pilot: Pilot) -> dict[str, Any]:
    """Return all of it as plain data; `ahead` is the probability that the best cycle is."""
    return {
        "advice": pilot.verdict,
        "best": pilot.best.name,
        "ahead": pilot.ahead,
        "speed_up": pilot.speed_up,
        "metric": pilot.metric,
        "videos": pilot.videos,
        "chance": pilot.chance,
        "baseline_seconds": pilot.baseline_seconds,
        "first_estimate": pilot.first_estimate,
        "seconds": pilot.seconds,
        "arms": [
            {
                "arm": arm.name,
                "keys": arm.keys,
                pilot.metric: arm.score,
                "standard_error": pilot.error(arm.score),
                "stages": [{**asdict(stage), "shape": str(stage.shape)} for stage in arm.stages],
            }
            for arm in pilot.arms
        ],
    }


def write_pilot(pilot: Pilot, folder: Path, command: str) -> None:
    """Write pilot.md, pilot.json and pilot.png into a folder."""
    _plot(pilot, folder / "pilot.png")
    paragraphs = ["# Pilot", _table(pilot, markdown=True), "![Pilot](pilot.png)", *_notes(pilot)]
    paragraphs.append(advice_of(pilot))
    paragraphs.append(f"To reproduce:\n\n    {command}")
    write_report(folder, "pilot", pilot_json(pilot), paragraphs)


def _plot(pilot: Pilot, path: Path) -> None:
    """A bar for each arm: its time, cut into its shapes."""
    figure, [axes] = new_figure(rows=1, width=8, height=1.5 + 0.7 * len(pilot.arms))
    shapes = list(dict.fromkeys(stage.shape for arm in pilot.arms for stage in arm.stages))
    names = [f"{arm.name}\n{arm.score:.1f} ± {pilot.error(arm.score):.1f} %" for arm in pilot.arms]
    for number, arm in enumerate(pilot.arms):
        left = 0.0
        for stage in arm.stages:
            colour = COLOURS[shapes.index(stage.shape) % len(COLOURS)]
            axes.barh(number, stage.seconds, left=left, color=colour, label=str(stage.shape))
            left += stage.seconds
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("training time, loading included (s)")
    handles, labels = axes.get_legend_handles_labels()
    legend = dict(zip(labels, handles, strict=True))
    figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=len(legend))
    title = f"{metric_title(pilot.metric)} after equal times, {pilot.videos} videos, one seed"
    axes.set_title(title, fontsize=10)
    save_figure(figure, path)
