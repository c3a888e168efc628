"""Result of a pilot: its scores, the verdict, and the report.

The verdict is about one claim: after equal time, the best cycle is ahead of the baseline. Its
probability follows from two errors of each score: the number of videos is finite, and there is a
single seed. The second error is large where a curve is steep, as in the minutes of a pilot
(projects/real_video/README.md).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from multigrid import GENTLE, PAPER, Cycles, Schedule, Shape
from multigrid.cost import MIN_FINAL_ITERATIONS
from slowfast_patches.config.metrics import metric_title
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import cycle_keys, schedule_of
from slowfast_patches.study.curves import draw_chance
from slowfast_patches.study.report import Report, Table
from slowfast_patches.utils.pictures import COLOURS, new_figure, save_figure
from slowfast_patches.utils.tables import format_duration

_SEEDS = 40.0
"""Standard deviation over seeds of a score p, in points, divided by p (1 − p).

This is the root mean square over the twenty trainings of the words and the digits
(projects/real_video/README.md).
"""

_PROBABLE = 0.75
"""Smallest probability for an advice."""

_SUREST = 0.95
"""Largest probability that is reported. One seed on one data set cannot prove more."""


@dataclass(frozen=True)
class Stage:
    """Training of an arm at one shape.

    Attributes:
        shape: the shape of its mini-batches.
        seconds: its time, including loading.
        iterations: its number of iterations.
        loss: mean training loss of the last tenth of the iterations.
    """

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
    """The baseline or a cycle, after its training.

    Attributes:
        cycles: the cycles that were tried; None for the baseline.
        stages: the shapes that were trained, in this order.
        score: final metric in per cent, at the baseline's shape.
    """

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
    """Result of a pilot, whose arms were trained for equal times.

    Attributes:
        recipe: the baseline's recipe for one process.
        schedule: the schedule of that recipe.
        arms: the baseline, then one cycle or more.
        metric: name of the metric of the scores.
        videos: number of videos that were scored.
        chance: accuracy in per cent of always predicting the most common class. It is 0 if a video
            has several labels.
        processes: number of processes that the baseline's recipe asks for.
        baseline_seconds: predicted time of the whole baseline on these processes, without
            evaluation. It assumes linear scaling.
        first_estimate: the same time, predicted from the few steps that were timed first.
        seconds: time that the pilot took.
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
        """The arm with the highest score, apart from the baseline."""
        return max(self.arms[1:], key=lambda arm: arm.score)

    @property
    def ahead(self) -> float:
        """Probability that the best cycle is ahead of the baseline after equal time.

        It is corrected for the number of cycles, because each one may be the best by luck.
        """
        baseline = self.arms[0].score
        best = self.best.score
        spread = math.hypot(self.error(baseline), self.error(best))
        ahead = 0.5 * (1 + math.erf((best - baseline) / spread / math.sqrt(2)))
        if ahead > 0.5:
            ahead = max(0.5, 1 - (len(self.arms) - 1) * (1 - ahead))
        return min(max(ahead, 1 - _SUREST), _SUREST)

    @property
    def verdict(self) -> str:
        """One of "use multigrid", "do not use multigrid" and "undecided".

        A cycle is rejected only if it had `MIN_FINAL_ITERATIONS` at the baseline's shape.
        """
        if self.ahead >= _PROBABLE:
            return "use multigrid"
        if self.ahead <= 1 - _PROBABLE and self.final_iterations >= MIN_FINAL_ITERATIONS:
            return "do not use multigrid"
        return "undecided"

    @property
    def final_iterations(self) -> int:
        """Iterations of the best cycle at the baseline's shape, at its end."""
        return self.best.stages[-1].iterations

    def error(self, score: float) -> float:
        """Return the standard error of a score in per cent, from both parts of `errors`."""
        return math.hypot(*self.errors(score))

    def errors(self, score: float) -> tuple[float, float]:
        """Return the parts of a score's standard error: of the videos, and of a single seed."""
        part = min(max(score / 100, 1 / self.videos), 1 - 1 / self.videos)
        variance = part * (1 - part)
        return 100 * math.sqrt(variance / self.videos), _SEEDS * variance

    @property
    def speed_up(self) -> float:
        """Time of the whole baseline divided by that of the whole training with the best cycle.

        Both are predicted from the time per clip in the pilot.
        """
        stages = (*self.best.stages, *self.arms[0].stages)
        per_clip = {stage.shape: stage.seconds_per_clip for stage in stages}
        schedule = schedule_of(self.recipe.replaced(self.best.keys), self.schedule.num_videos)
        seconds = sum(phase.clips * per_clip[phase.base_shape] for phase in schedule.phases)
        return self.schedule.clips * per_clip[self.schedule.base] / seconds


def pilot_report(pilot: Pilot, command: str) -> Report:
    """Return the report of a pilot.

    Args:
        pilot: the result.
        command: command line that reproduces it.
    """
    table = _table(pilot)
    notes = _notes(pilot)
    advice = advice_of(pilot)
    return Report(
        name="pilot",
        title="Pilot",
        summary=[table, *notes, advice],
        body=[table, "![Pilot](pilot.png)", *notes, advice],
        command=command,
        data=_to_json(pilot),
        draw=partial(_draw, pilot),
    )


def _table(pilot: Pilot) -> Table:
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
    return Table(headers, rows, left=2)


def _notes(pilot: Pilot) -> list[str]:
    """Return two paragraphs: how the scores were measured, and how long the baseline takes."""
    title = metric_title(pilot.metric)
    chance = ""
    if pilot.chance:
        chance = f" Always predicting their most common class would score {pilot.chance:.1f} %."
    several = f" on {pilot.processes} processes" if pilot.processes > 1 else ""
    return [
        f"The {title} was measured on {pilot.videos} validation videos at the baseline's shape, "
        f"with one seed.{chance} ± is the standard error that follows from the number of videos "
        "and from the single seed. The loss is the mean training loss of the last tenth of each "
        "shape's iterations.",
        f"The pilot took {format_duration(pilot.seconds)}. The whole baseline would take "
        f"{format_duration(pilot.baseline_seconds)}{several}, according to the "
        f"{pilot.arms[0].stages[0].iterations} iterations of its first row. (The first estimate, "
        f"from a few steps, was {format_duration(pilot.first_estimate)}.)",
    ]


def advice_of(pilot: Pilot) -> str:
    """Return the verdict, its probability, and what to do next."""
    name = pilot.best.name
    percent = round(100 * pilot.ahead)
    evidence = f"according to these {pilot.videos} videos and one seed"
    if pilot.verdict == "use multigrid":
        factor = pilot.best.cycles.epoch_factor if pilot.best.cycles else 1.0
        return (
            f'Advice: use multigrid ("{name}"). After equal time it is ahead of the baseline with '
            f"a probability of {percent} %, {evidence}. Its whole training takes "
            f"1/{pilot.speed_up:.2f} of the baseline's time, for {factor:g} × the clips. "
            "multigrid-compare shows the accuracy that both reach."
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
            f" Only {pilot.final_iterations} iterations followed its last coarse shape. It takes "
            f"about {MIN_FINAL_ITERATIONS} to see what the coarse shapes taught."
        )
    if 2 * pilot.seconds >= pilot.baseline_seconds:
        return f"{text} To know, train both with multigrid-compare."
    of_videos, of_seed = pilot.errors(pilot.best.score)
    return (
        f"{text} For a clearer result, give it twice the time (--minutes "
        f"{math.ceil(pilot.seconds / 30)}), another seed (RNG_SEED 1; the single seed causes "
        f"±{of_seed:.1f} of the best score's ±{pilot.error(pilot.best.score):.1f}), or more "
        f"validation videos (at most 300 are scored; these {pilot.videos} cause "
        f"±{of_videos:.1f}). Or train both with multigrid-compare."
    )


def recipe_text(cycles: Cycles, base: str) -> str:
    """Return the YAML text of a recipe that inherits from another one and sets its cycles.

    Args:
        cycles: named cycles, or a variation of them.
        base: path of the other recipe.
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


def _to_json(pilot: Pilot) -> dict[str, Any]:
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


def _draw(pilot: Pilot, path: Path) -> None:
    """Draw the score of each arm with an interval of one standard error, and chance."""
    names = [arm.name.replace(", ", ",\n") for arm in pilot.arms]
    figure, [axes] = new_figure(rows=1, width=3 + 1.3 * len(names), height=4)
    for number, arm in enumerate(pilot.arms):
        error = pilot.error(arm.score)
        colour = COLOURS[0] if arm.cycles is None else COLOURS[1]
        axes.errorbar(number, arm.score, error, fmt="o", ms=8, capsize=6, color=colour)
        text = f"{arm.score:.1f} ± {error:.1f}"
        axes.annotate(text, (number, arm.score), xytext=(10, -3), textcoords="offset points")
    if pilot.chance:
        draw_chance(axes, pilot.chance)
        figure.legend(loc="outside lower center", frameon=False)
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.4, len(names) - 0.2)
    axes.set_ylabel(f"{metric_title(pilot.metric)} (%)")
    axes.set_title(
        f"After equal training times: score ± standard error\n({pilot.videos} videos, n = 1 seed)",
        fontsize=10,
    )
    save_figure(figure, path)
