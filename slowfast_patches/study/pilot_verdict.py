"""Result of a pilot: the probability that a cycle is ahead, its advice and its report.

The verdict is about one claim: after equal time, the best cycle is ahead of the baseline. Its
probability follows from two errors of each score: the number of videos is finite, and there are few
seeds. The second error is large where a curve is steep, as in the minutes of a pilot
(projects/real_video/README.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import yaml

from multigrid import GENTLE, PAPER, Cycles
from multigrid.cost import MIN_FINAL_ITERATIONS, final_iterations
from slowfast_patches.config.metrics import metric_title
from slowfast_patches.config.schedule import cycle_keys
from slowfast_patches.study.arms import Arm
from slowfast_patches.study.report import Report, Results, machine_warnings
from slowfast_patches.study.runs import mean
from slowfast_patches.study.verdict import scored_videos, videos_error
from slowfast_patches.utils.tables import Mean, format_duration

_SEEDS = 40.0
"""Standard deviation over seeds of a score p, in points, divided by p (1 − p).

This is the root mean square over the twenty trainings of the words and the digits
(projects/real_video/README.md).
"""

_PROBABLE = 0.75
"""Smallest probability for an advice."""

_SUREST = 0.95
"""Largest probability that is reported. Few seeds on one data set cannot prove more."""

_WAITING = 0.15
"""Share of a training spent waiting for data from which on the arms' times are not equal."""

_COLUMNS = ("length", "iterations", "clips", "clock", "seconds", "total", "loading")


@dataclass(frozen=True)
class Pilot(Results):
    """Result of a pilot, whose arms were trained for equal times.

    Attributes:
        baseline_seconds: seconds of the steps of the whole baseline.
    """

    baseline_seconds: float

    @property
    def videos(self) -> int:
        """Number of videos that were scored."""
        return scored_videos(self.runs["result"])

    @property
    def scores(self) -> dict[str, Mean]:
        """Means over seeds of the metric by arm, with their standard errors as `std`."""
        means = self.runs.groupby("arm")[self.metrics[0]].mean()
        return {
            str(arm): Mean(score, math.hypot(*self.errors(score))) for arm, score in means.items()
        }

    def errors(self, score: float) -> tuple[float, float]:
        """Return the parts of a score's standard error: of the videos, and of the seeds."""
        of_videos = videos_error(score, self.videos)
        variance = (of_videos / 100) ** 2 * self.videos
        return of_videos, _SEEDS * variance / math.sqrt(len(self.study.seeds))

    @property
    def best(self) -> Arm:
        """The arm with the highest score, apart from the baseline."""
        return max(self.study.arms[1:], key=lambda arm: self.scores[arm.name].mean)

    @property
    def ahead(self) -> float:
        """Probability that the best cycle is ahead of the baseline after equal time.

        It is corrected for the number of cycles, because each one may be the best by luck.
        """
        before, after = (self.scores[name] for name in ("baseline", self.best.name))
        spread = math.hypot(before.std or 0.0, after.std or 0.0)
        ahead = 0.5 * (1 + math.erf((after.mean - before.mean) / spread / math.sqrt(2)))
        if ahead > 0.5:
            ahead = max(0.5, 1 - (len(self.study.arms) - 1) * (1 - ahead))
        return min(max(ahead, 1 - _SUREST), _SUREST)

    @property
    def verdict(self) -> str:
        """One of "use multigrid", "do not use multigrid" and "undecided".

        A cycle is used only if it did not wait for data, because then its time was not equal. It is
        rejected only if it had `MIN_FINAL_ITERATIONS` at the baseline's shape.
        """
        if self.ahead >= _PROBABLE and self.waiting < _WAITING:
            return "use multigrid"
        if self.ahead <= 1 - _PROBABLE and self.final_iterations >= MIN_FINAL_ITERATIONS:
            return "do not use multigrid"
        return "undecided"

    @property
    def final_iterations(self) -> int:
        """Iterations of the best cycle at the baseline's shape, at its end."""
        return final_iterations(self.best.schedule)

    @property
    def waiting(self) -> float:
        """Share of the best cycle's training that was spent waiting for data."""
        found = mean(self.runs, self.best.name, "loading")
        return found.mean if found else 0.0

    @property
    def speed_up(self) -> float:
        """Time of the whole baseline divided by that of the whole training with the best cycle.

        Arms take equal times, so it is the ratio of their lengths.
        """
        return self.best.length / self.study.arms[0].length

    @property
    def seconds(self) -> float:
        """Wall-clock time of the runs of a seed."""
        return float(self.runs["total"].sum()) / len(self.study.seeds)

    def to_json(self) -> dict[str, Any]:
        """Return the pilot as plain data."""
        errors = {name: score.std for name, score in self.scores.items()}
        names = ("videos", "speed_up", "baseline_seconds", "seconds", "ahead")
        return {
            **super().to_json(),
            **{name: getattr(self, name) for name in names},
            "advice": self.verdict,
            "best": self.best.name,
            "standard_errors": errors,
        }


def pilot_report(pilot: Pilot) -> Report:
    """Return the report of a pilot."""
    name = pilot.best.name
    result = machine_warnings(pilot.runs)
    if pilot.waiting >= _WAITING:
        result.append(
            f'Warning: "{name}" waited for data in {100 * pilot.waiting:.0f} % of its training, so '
            "that it took longer than its steps. Prepare the videos with multigrid-prepare, and "
            "repeat the pilot."
        )
    explained = (
        f"{metric_title(pilot.metrics[0])} was measured on {pilot.videos} validation videos at the "
        "baseline's shape. ± is the standard error that follows from the numbers of videos and of "
        f"seeds. The pilot took {format_duration(pilot.seconds)} for each seed. The steps of the "
        f"whole baseline would take {format_duration(pilot.baseline_seconds)}."
    )
    return Report(
        name="pilot",
        title="Pilot",
        results=pilot,
        tables=[pilot.table(_COLUMNS, pilot.scores), explained],
        result=[*result, _advice(pilot)],
    )


def _advice(pilot: Pilot) -> str:
    """Return the verdict, its probability, and what to do next."""
    ahead = (
        f'After equal time the best cycle ("{pilot.best.name}") is ahead of the baseline with a '
        f"probability of {100 * pilot.ahead:.0f} %, according to these {pilot.videos} videos and "
        f"{_count(len(pilot.study.seeds))}."
    )
    if pilot.verdict == "use multigrid":
        factor = pilot.best.recipe.multigrid.epoch_factor
        return (
            f"Advice: use multigrid. {ahead} Its whole training takes 1/{pilot.speed_up:.2f} of "
            f"the baseline's time, for {factor:g} × the clips. multigrid-compare shows the "
            "accuracy that both reach."
        )
    if pilot.verdict == "do not use multigrid":
        return f"Advice: do not use multigrid here. {ahead}"
    if pilot.final_iterations < MIN_FINAL_ITERATIONS:
        ahead += (
            f" Only {pilot.final_iterations} iterations followed its last coarse shape. It takes "
            f"about {MIN_FINAL_ITERATIONS} to see what the coarse shapes taught."
        )
    return f"Undecided. {ahead} {_more_evidence(pilot)}"


def _more_evidence(pilot: Pilot) -> str:
    """Return what would make an undecided pilot clearer."""
    if 2 * pilot.seconds >= pilot.baseline_seconds:
        return "To know, train both with multigrid-compare."
    score = pilot.scores[pilot.best.name]
    of_videos, of_seeds = pilot.errors(score.mean)
    seeds = " ".join(map(str, range(max(pilot.study.seeds) + 2)))
    return (
        f"For a clearer result, give it twice the time (--minutes {math.ceil(pilot.seconds / 30)})"
        f", another seed (--seeds {seeds}; {_count(len(pilot.study.seeds))} cause ±{of_seeds:.1f} "
        f"of the best score's ±{score.std:.1f}), or more validation videos (these {pilot.videos} "
        f"cause ±{of_videos:.1f}). Or train both with multigrid-compare."
    )


def _count(seeds: int) -> str:
    return "one seed" if seeds == 1 else f"{seeds} seeds"


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
