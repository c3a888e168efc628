"""Evaluate a pilot: advise for or against multigrid training, and report the results.

The advice depends on the probability that the best cycle is more accurate than the baseline after
equal time. The probability is computed from the standard errors of both scores. A standard error
has two sources: the finite number of videos and the small number of seeds. The variation between
seeds is large early in a training, where accuracy changes fast (benchmarks/real_video/README.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import pandas as pd
import yaml

from multigrid import Cycles
from multigrid.cost import MIN_FINAL_ITERATIONS, final_iterations
from slowfast_patches.config.metrics import metric_names
from slowfast_patches.config.recipe_cycles import cycle_keys
from slowfast_patches.experiments.report import (
    Report,
    experiment_json,
    experiment_warnings,
    explain_differences,
    origin,
    variants_table,
)
from slowfast_patches.experiments.runs import Experiment
from slowfast_patches.experiments.score import format_score, score_of, scored_videos
from slowfast_patches.experiments.variants import Variant
from slowfast_patches.utils.clock import format_duration
from slowfast_patches.utils.errors import RunError

_PROBABLE = 0.75
"""Minimum probability to advise for or against multigrid training."""

_SUREST = 0.95
"""Maximum probability that is reported. A few seeds on one data set cannot prove more."""

_WAITING = 0.15
"""Share of training time spent waiting for data from which the variants' times count as unequal."""

_COLUMNS = ("iterations", "clips", "clock", "seconds", "total", "loading")


@dataclass(frozen=True)
class PilotResult:
    """Result of a pilot, whose variants were trained for equal times.

    Attributes:
        scores: Maps the label of each variant to its score and standard error.
        best: Variant with the highest score, excluding the baseline.
        ahead: Probability that the best cycle is more accurate than the baseline after equal time.
        waiting: Share of the best cycle's training time that was spent waiting for data.
        speed_up: Speed-up of a full training with the best cycle, relative to the full baseline.
    """

    scores: Mapping[str, NormalDist]
    best: Variant
    ahead: float
    waiting: float
    speed_up: float

    @property
    def advice(self) -> str:
        """One of "use multigrid", "do not use multigrid" and "undecided".

        If the best cycle waited for data, multigrid is not advised, because the training times were
        not equal. If the best cycle ended with fewer than `MIN_FINAL_ITERATIONS` iterations at the
        baseline's shape, multigrid is not rejected.
        """
        if self.ahead >= _PROBABLE and self.waiting < _WAITING:
            return "use multigrid"
        recovered = final_iterations(self.best.schedule) >= MIN_FINAL_ITERATIONS
        return "do not use multigrid" if self.ahead <= 1 - _PROBABLE and recovered else "undecided"


def evaluate_pilot(experiment: Experiment, runs: pd.DataFrame) -> PilotResult:
    """Compute the result of a pilot.

    Args:
        experiment: Variants and seeds, the baseline first.
        runs: Table returned by `Experiment.runs`.

    Raises:
        RunError: The baseline or all cycles have no finished run.
    """
    baseline, *cycles = experiment.variants
    cycles = [variant for variant in cycles if variant.name in set(runs["variant"])]
    if not cycles or baseline.name not in set(runs["variant"]):
        raise RunError(
            "The pilot has no result, because the baseline or all cycles failed: "
            f"{'; '.join(experiment.failed().values())}"
        )
    metric = metric_names(baseline.recipe)[0]
    scores = {
        variant.label: score_of(runs, variant.name, metric) for variant in (baseline, *cycles)
    }
    best = max(cycles, key=lambda variant: scores[variant.label].mean)
    ahead = 1 - (scores[best.label] - scores[baseline.label]).cdf(0)
    if ahead > 0.5:
        # Bonferroni correction: with several cycles, the best may be ahead by chance.
        ahead = max(0.5, 1 - len(cycles) * (1 - ahead))
    return PilotResult(
        scores,
        best,
        ahead=min(max(ahead, 1 - _SUREST), _SUREST),
        waiting=float(runs.loc[runs["variant"] == best.name, "loading"].mean()),
        # All variants take equal times, so the speed-up is the ratio of their lengths.
        speed_up=best.length / baseline.length,
    )


def report_pilot(
    experiment: Experiment,
    runs: pd.DataFrame,
    outcome: PilotResult,
    command: str,
    baseline_seconds: float,
) -> Report:
    """Return the report of a pilot.

    Args:
        experiment: Variants and seeds, the baseline first.
        runs: Table returned by `Experiment.runs`.
        outcome: Result of the pilot.
        command: Command line that reproduces the report.
        baseline_seconds: Time of all training steps of the full-length baseline, in seconds.
    """
    videos = scored_videos(runs["result"])
    content = experiment_json(experiment, runs, command)
    chance = content["chance"]
    seconds = float(runs["total"].sum()) / len(experiment.seeds)
    scores = "; ".join(f"{name} {format_score(score)}" for name, score in outcome.scores.items())
    explained = (
        f"Scores on {videos} validation videos at the baseline's shape, with the standard errors "
        f"due to the numbers of videos and seeds, in per cent: {scores}. Chance is {chance:.1f}. "
        f"The pilot took {format_duration(seconds)} per seed. A full training of the baseline "
        f"would take {format_duration(baseline_seconds)}, excluding data loading and evaluation."
    )
    table = variants_table(
        experiment, runs, [*_COLUMNS, *metric_names(experiment.variants[0].recipe)[:1]]
    )
    return Report(
        name="pilot",
        title="Pilot",
        result=[
            *(f"Warning: {text}" for text in experiment_warnings(experiment, runs)),
            *_explain(outcome),
        ],
        tables=[table, explained],
        notes=[*explain_differences(experiment), *origin(runs, command)],
        content=content
        | {
            "videos": videos,
            "speed_up": outcome.speed_up,
            "baseline_seconds": baseline_seconds,
            "seconds": seconds,
            "ahead": outcome.ahead,
            "advice": outcome.advice,
            "best": outcome.best.label,
            "standard_errors": {name: score.stdev for name, score in outcome.scores.items()},
        },
    )


def _explain(outcome: PilotResult) -> list[str]:
    """Return warnings about a pilot, and its advice with the reasons."""
    best = outcome.best
    texts = list[str]()
    if outcome.waiting >= _WAITING:
        texts.append(
            f'Warning: "{best.label}" spent {100 * outcome.waiting:.0f} % of its training time '
            "waiting for data, so the variants did not train for equal times. Prepare the videos "
            "with multigrid-prepare, and repeat the pilot."
        )
    if (final := final_iterations(best.schedule)) < MIN_FINAL_ITERATIONS:
        texts.append(
            f'Warning: "{best.label}" ended with only {final} iterations at the baseline\'s shape. '
            f"About {MIN_FINAL_ITERATIONS} are needed to recover the accuracy after training on "
            "small shapes."
        )
    ahead = (
        f'After equal time, the best cycle ("{best.label}") is more accurate than the baseline '
        f"with a probability of {100 * outcome.ahead:.0f} %."
    )
    more = {
        "use multigrid": f"A full training with this cycle takes 1/{outcome.speed_up:.2f} of the "
        f"baseline's time and sees {best.recipe.multigrid.epoch_factor:g} × as many clips.",
        "undecided": "For a clearer result, give more --minutes, --seeds or validation videos, or "
        "compare full trainings with multigrid-compare.",
    }
    return [*texts, " ".join([f"Advice: {outcome.advice}.", ahead, more.get(outcome.advice, "")])]


def recipe_text(cycles: Cycles, base: str) -> str:
    """Return YAML text for a recipe that inherits from `base` and replaces its cycles.

    The recipe is evaluated every TRAIN.EVAL_PERIOD epochs, as the baseline is.
    """
    keys = {key.removeprefix("MULTIGRID."): value for key, value in cycle_keys(cycles).items()}
    content = {"_BASE_": base, "MULTIGRID": keys | {"EVAL_FREQ": 0}}
    return str(yaml.safe_dump(content, default_flow_style=None, sort_keys=False, width=1000))
