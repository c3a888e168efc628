"""Evaluate a pilot: advise for or against multigrid training, and report the results.

The advice depends on the probability that the best cycle is more accurate than the baseline after
equal time. The probability is computed from the standard errors of both scores. A standard error
has two sources: the finite number of videos and the small number of seeds. The variation between
seeds is large early in a training, where accuracy changes fast (benchmarks/real_video/README.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import yaml

from multigrid import Cycles
from multigrid.cost import MIN_FINAL_ITERATIONS, final_iterations
from slowfast_patches.config.metrics import metric_title
from slowfast_patches.config.schedule import cycle_keys
from slowfast_patches.study.arms import Arm
from slowfast_patches.study.report import Report, Table
from slowfast_patches.study.score import Score, score_of, scored_videos
from slowfast_patches.utils.tables import format_duration

_SEEDS = 40.0
"""Standard deviation of an accuracy p over seeds, in percentage points, divided by p (1 − p).

The value is the root mean square over twenty trainings on two data sets of words and digits
(benchmarks/real_video/README.md).
"""

_PROBABLE = 0.75
"""Minimum probability to advise for or against multigrid training."""

_SUREST = 0.95
"""Maximum probability that is reported. A few seeds on one data set cannot prove more."""

_WAITING = 0.15
"""Share of training time spent waiting for data from which the arms' times count as unequal."""

_COLUMNS = ("length", "iterations", "clips", "clock", "seconds", "total", "loading")


@dataclass(frozen=True)
class Pilot(Report):
    """Report of a pilot, whose arms were trained for equal times.

    Attributes:
        baseline_seconds: Time of all training steps of the full-length baseline, in seconds.
    """

    baseline_seconds: float
    name = "pilot"

    @property
    def videos(self) -> int:
        """Number of validation videos that were scored."""
        return scored_videos(self.runs["result"])

    @cached_property
    def scores(self) -> dict[str, Score]:
        """Maps the name of each arm to its score."""
        names = self.runs["arm"].unique()
        return {arm: score_of(self.runs, arm, self.metrics[0], _SEEDS) for arm in names}

    @property
    def best(self) -> Arm:
        """Arm with the highest score, excluding the baseline."""
        return max(self.study.arms[1:], key=lambda arm: self.scores[arm.name].mean)

    @property
    def ahead(self) -> float:
        """Probability that the best cycle is more accurate than the baseline after equal time.

        A Bonferroni correction for the number of cycles is applied, because with several cycles,
        the best may be ahead by chance.
        """
        ahead = self.scores[self.best.name].probability_above(self.scores["baseline"])
        if ahead > 0.5:
            ahead = max(0.5, 1 - (len(self.study.arms) - 1) * (1 - ahead))
        return min(max(ahead, 1 - _SUREST), _SUREST)

    @property
    def verdict(self) -> str:
        """One of "use multigrid", "do not use multigrid" and "undecided".

        If the best cycle waited for data, multigrid is not advised, because the training times were
        not equal. If the best cycle ended with fewer than `MIN_FINAL_ITERATIONS` iterations at the
        baseline's shape, multigrid is not rejected.
        """
        if self.ahead >= _PROBABLE and self.waiting < _WAITING:
            return "use multigrid"
        if self.ahead <= 1 - _PROBABLE and self.final_iterations >= MIN_FINAL_ITERATIONS:
            return "do not use multigrid"
        return "undecided"

    @property
    def final_iterations(self) -> int:
        """Number of iterations at the baseline's shape at the end of the best cycle."""
        return final_iterations(self.best.schedule)

    @property
    def waiting(self) -> float:
        """Share of the best cycle's training time that was spent waiting for data."""
        return float(self.runs.loc[self.runs["arm"] == self.best.name, "loading"].mean())

    @property
    def speed_up(self) -> float:
        """Speed-up of a full training with the best cycle, relative to the full baseline.

        All arms of the pilot take equal times, so the speed-up is the ratio of their lengths.
        """
        return self.best.length / self.study.arms[0].length

    @property
    def seconds(self) -> float:
        """Wall-clock time of the pilot per seed, in seconds."""
        return float(self.runs["total"].sum()) / len(self.study.seeds)

    def cell(self, arm: Arm, name: str) -> str:
        is_score = name == self.metrics[0]
        return self.scores[arm.name].format() if is_score else super().cell(arm, name)

    def to_json(self) -> dict[str, Any]:
        names = ("videos", "speed_up", "baseline_seconds", "seconds", "ahead")
        return {
            **super().to_json(),
            **{name: getattr(self, name) for name in names},
            "advice": self.verdict,
            "best": self.best.name,
            "standard_errors": {name: score.error for name, score in self.scores.items()},
        }

    def tables(self) -> list[str | Table]:
        explained = (
            f"{metric_title(self.metrics[0])} was measured on {self.videos} validation videos at "
            "the baseline's shape. ± is the standard error due to the numbers of videos and seeds. "
            f"The pilot took {format_duration(self.seconds)} per seed. A full training of the "
            f"baseline would take {format_duration(self.baseline_seconds)}, excluding data loading "
            "and evaluation."
        )
        return [self.table([*_COLUMNS, self.metrics[0]]), explained]

    def result(self) -> list[str]:
        texts = self.warnings()
        if self.waiting >= _WAITING:
            texts.append(
                f'Warning: "{self.best.name}" spent {100 * self.waiting:.0f} % of its training '
                "time waiting for data, so the arms did not train for equal times. Prepare the "
                "videos with multigrid-prepare, and repeat the pilot."
            )
        return [*texts, self._advice()]

    def _advice(self) -> str:
        """Return text with the verdict, the probability behind it, and the next step."""
        seeds = len(self.study.seeds)
        ahead = (
            f'After equal time, the best cycle ("{self.best.name}") is more accurate than the '
            f"baseline with a probability of {100 * self.ahead:.0f} %, estimated from "
            f"{self.videos} videos and {seeds} seed{'s' * (seeds > 1)}."
        )
        if self.verdict == "use multigrid":
            factor = self.best.recipe.multigrid.epoch_factor
            return (
                f"Advice: use multigrid. {ahead} A full training with this cycle takes "
                f"1/{self.speed_up:.2f} of the baseline's time and sees {factor:g} × as many "
                "clips. To compare the accuracy of full trainings, run multigrid-compare."
            )
        if self.verdict == "do not use multigrid":
            return f"Advice: do not use multigrid here. {ahead}"
        if self.final_iterations < MIN_FINAL_ITERATIONS:
            ahead += (
                f" The cycle ended with only {self.final_iterations} iterations at the baseline's "
                f"shape. About {MIN_FINAL_ITERATIONS} are needed to recover the accuracy after "
                "training on small shapes."
            )
        return f"Undecided. {ahead} {self._more_evidence()}"

    def _more_evidence(self) -> str:
        """Suggest how to get a clearer result from an undecided pilot."""
        if 2 * self.seconds >= self.baseline_seconds:
            return "For a clear result, compare full trainings: train both with multigrid-compare."
        score = self.scores[self.best.name]
        seeds = " ".join(map(str, range(max(self.study.seeds) + 2)))
        return (
            f"For a clearer result, double the time (--minutes {math.ceil(self.seconds / 30)}), "
            f"add a seed (--seeds {seeds}), use more validation videos, or compare full trainings "
            "with multigrid-compare. The standard error of the best score is "
            f"±{score.error:.1f}: ±{score.of_seeds:.1f} from the number of seeds and "
            f"±{score.of_videos:.1f} from the number of videos."
        )


def recipe_text(cycles: Cycles, base: str) -> str:
    """Return YAML text for a recipe that inherits from `base` and replaces its cycles.

    The recipe is evaluated every TRAIN.EVAL_PERIOD epochs, as the baseline is.
    """
    keys = {key.removeprefix("MULTIGRID."): value for key, value in cycle_keys(cycles).items()}
    content = {"_BASE_": base, "MULTIGRID": keys | {"EVAL_FREQ": 0}}
    return str(yaml.safe_dump(content, default_flow_style=None, sort_keys=False, width=1000))
