"""Result of a pilot: its scores, the verdict, and the report.

The verdict is about one claim: after equal time, the best cycle is ahead of the baseline. Its
probability follows from two errors of each score: the number of videos is finite, and there are few
seeds. The second error is large where a curve is steep, as in the minutes of a pilot
(projects/real_video/README.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd
import yaml

from multigrid import GENTLE, PAPER, Cycles
from multigrid.cost import MIN_FINAL_ITERATIONS, final_iterations
from slowfast_patches.config.metrics import metric_names, metric_title
from slowfast_patches.config.schedule import cycle_keys
from slowfast_patches.study.arms import Arm
from slowfast_patches.study.report import (
    COLUMNS,
    Report,
    Table,
    arm_json,
    machine_warnings,
    mean,
    provenance,
)
from slowfast_patches.study.runs import Study
from slowfast_patches.study.verdict import chance_of, scored_videos, videos_error
from slowfast_patches.utils.tables import format_duration

__all__ = ["Pilot", "pilot_report", "recipe_text"]

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


@dataclass(frozen=True)
class Pilot:
    """Result of a pilot, whose arms were trained for equal times.

    Attributes:
        study: the baseline, then one cycle or more, with their finished runs.
        runs: table of `Study.runs`.
        baseline_seconds: seconds of the steps of the whole baseline on its `processes`. It assumes
            linear scaling.
        processes: number of processes that the baseline's recipe asks for.
        command: command line that reproduces the report.
    """

    study: Study
    runs: pd.DataFrame
    baseline_seconds: float
    processes: int
    command: str

    @property
    def metric(self) -> str:
        """Name of the metric of the scores."""
        return metric_names(self.study.arms[0].recipe)[0]

    @property
    def videos(self) -> int:
        """Number of videos that were scored."""
        return scored_videos(self.runs["result"])

    @property
    def seeds(self) -> int:
        return len(self.study.seeds)

    @property
    def seconds(self) -> float:
        """Wall-clock time of the runs of a seed."""
        return float(self.runs["total"].sum()) / self.seeds

    @property
    def best(self) -> Arm:
        """The arm with the highest score, apart from the baseline."""
        return max(self.study.arms[1:], key=self.score)

    def score(self, arm: Arm) -> float:
        """Return the mean over seeds of the metric of an arm, in per cent."""
        found = mean(self.runs, arm.name, self.metric)
        assert found is not None, "all arms have results"
        return found.mean

    def errors(self, arm: Arm) -> tuple[float, float]:
        """Return the parts of a score's standard error: of the videos, and of the seeds."""
        of_videos = videos_error(self.score(arm), self.videos)
        variance = (of_videos / 100) ** 2 * self.videos
        return of_videos, _SEEDS * variance / math.sqrt(self.seeds)

    @property
    def ahead(self) -> float:
        """Probability that the best cycle is ahead of the baseline after equal time.

        It is corrected for the number of cycles, because each one may be the best by luck.
        """
        baseline = self.study.arms[0]
        lead = self.score(self.best) - self.score(baseline)
        spread = math.hypot(*self.errors(baseline), *self.errors(self.best))
        ahead = 0.5 * (1 + math.erf(lead / spread / math.sqrt(2)))
        if ahead > 0.5:
            ahead = max(0.5, 1 - (len(self.study.arms) - 1) * (1 - ahead))
        return min(max(ahead, 1 - _SUREST), _SUREST)

    @property
    def verdict(self) -> str:
        """One of "use multigrid", "do not use multigrid" and "undecided".

        A cycle is used only if it did not wait for data, because then its time was not equal. It is
        rejected only if it had `MIN_FINAL_ITERATIONS` at the baseline's shape.
        """
        if self.ahead >= _PROBABLE and self.waiting(self.best) < _WAITING:
            return "use multigrid"
        if self.ahead <= 1 - _PROBABLE and self.final_iterations >= MIN_FINAL_ITERATIONS:
            return "do not use multigrid"
        return "undecided"

    @property
    def final_iterations(self) -> int:
        """Iterations of the best cycle at the baseline's shape, at its end."""
        return final_iterations(self.best.schedule)

    def waiting(self, arm: Arm) -> float:
        """Return the share of an arm's training that was spent waiting for data."""
        runs = self.runs[self.runs["arm"] == arm.name]
        loading = sum(result["seconds"]["loading"] for result in runs["result"])
        return float(loading / runs["seconds"].sum())

    @property
    def speed_up(self) -> float:
        """Time of the whole baseline divided by that of the whole training with the best cycle.

        Arms take equal times, so it is the ratio of their lengths.
        """
        return self.best.length / self.study.arms[0].length

    def to_json(self) -> dict[str, Any]:
        """Return the pilot as plain data."""
        return {
            "advice": self.verdict,
            "best": self.best.name,
            "ahead": self.ahead,
            "speed_up": self.speed_up,
            "metric": self.metric,
            "videos": self.videos,
            "chance": chance_of(self.study.arms[0].recipe),
            "seeds": self.study.seeds,
            "baseline_seconds": self.baseline_seconds,
            "seconds": self.seconds,
            "command": self.command,
            "arms": [
                {
                    **arm_json(arm, self.runs, [self.metric]),
                    "standard_error": math.hypot(*self.errors(arm)),
                    "waiting_for_data": self.waiting(arm),
                }
                for arm in self.study.arms
            ],
        }


def pilot_report(pilot: Pilot) -> Report:
    """Return the report of a pilot."""
    text: list[str | Table] = [_table(pilot), *_notes(pilot), advice_of(pilot)]
    return Report(
        name="pilot",
        title="Pilot",
        summary=text,
        body=[*text, *provenance(pilot.runs)],
        command=pilot.command,
        data=pilot.to_json(),
    )


def _table(pilot: Pilot) -> Table:
    names = ("iterations", "clips", "clock", "seconds", "total")
    headers = ["arm", "length", *(COLUMNS[name][0] for name in names), "waiting\nfor data"]
    rows = list[list[str]]()
    for arm in pilot.study.arms:
        means = {name: mean(pilot.runs, arm.name, name) for name in names}
        rows.append(
            [
                arm.name,
                f"{arm.length:.3g}×",
                *(COLUMNS[name][1](found.mean) for name, found in means.items() if found),
                f"{100 * pilot.waiting(arm):.0f} %",
                f"{pilot.score(arm):.1f} ± {math.hypot(*pilot.errors(arm)):.1f}",
            ]
        )
    return Table([*headers, f"{metric_title(pilot.metric)}, %"], rows)


def _notes(pilot: Pilot) -> list[str]:
    """Return how the scores were measured, how long the baseline takes, and warnings."""
    chance = ""
    if (share := chance_of(pilot.study.arms[0].recipe)) is not None:
        chance = f" Always predicting their most common class would score {share:.1f} %."
    several = f" on {pilot.processes} processes" if pilot.processes > 1 else ""
    return [
        f"The {metric_title(pilot.metric)} was measured on {pilot.videos} validation videos at the "
        f"baseline's shape, with {_seeds(pilot)}.{chance} ± is the standard error that follows "
        "from the numbers of videos and of seeds.",
        f"The pilot took {format_duration(pilot.seconds)} for each seed. The steps of the whole "
        f"baseline would take {format_duration(pilot.baseline_seconds)}{several}.",
        *machine_warnings(pilot.runs),
        *_waiting_warning(pilot),
    ]


def _seeds(pilot: Pilot) -> str:
    return "one seed" if pilot.seeds == 1 else f"{pilot.seeds} seeds"


def _waiting_warning(pilot: Pilot) -> list[str]:
    """Return a list with a warning if the best cycle waited for data, else an empty list."""
    share = pilot.waiting(pilot.best)
    if share < _WAITING:
        return []
    return [
        f'Warning: "{pilot.best.name}" waited for data in {100 * share:.0f} % of its training, so '
        "that it took longer than its steps. Prepare the videos with multigrid-prepare, and repeat "
        "the pilot."
    ]


def advice_of(pilot: Pilot) -> str:
    """Return the verdict, its probability, and what to do next."""
    name = pilot.best.name
    percent = round(100 * pilot.ahead)
    evidence = f"according to these {pilot.videos} videos and {_seeds(pilot)}"
    if pilot.verdict == "use multigrid":
        factor = pilot.best.recipe.multigrid.epoch_factor
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
    return f"{text} {_more_evidence(pilot)}"


def _more_evidence(pilot: Pilot) -> str:
    """Return what would make an undecided pilot clearer."""
    if 2 * pilot.seconds >= pilot.baseline_seconds:
        return "To know, train both with multigrid-compare."
    of_videos, of_seeds = pilot.errors(pilot.best)
    seeds = " ".join(map(str, range(max(pilot.study.seeds) + 2)))
    return (
        f"For a clearer result, give it twice the time (--minutes {math.ceil(pilot.seconds / 30)})"
        f", another seed (--seeds {seeds}; {_seeds(pilot)} cause ±{of_seeds:.1f} of the best "
        f"score's ±{math.hypot(of_videos, of_seeds):.1f}), or more validation videos (these "
        f"{pilot.videos} cause ±{of_videos:.1f}). Or train both with multigrid-compare."
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
