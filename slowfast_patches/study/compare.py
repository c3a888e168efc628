"""Comparison of recipes: build the arms to train, and report the finished runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from multigrid.cost import short_ends
from slowfast_patches.config.metrics import metric_names, metric_title
from slowfast_patches.study.arms import Arm, at_lengths, check_study, make_arm, scaled
from slowfast_patches.study.curves import (
    LONG_TITLES,
    curves_of,
    draw_panels,
    explain_curves,
    format_break_even,
    levels_of,
    levels_table,
)
from slowfast_patches.study.report import Report, Table, title_of
from slowfast_patches.study.runs import mean
from slowfast_patches.study.score import CLEAR, Score, score_of
from slowfast_patches.utils.pictures import MUTED, time_unit
from slowfast_patches.utils.tables import format_factor, format_list

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ERRORS = "± in the verdict is the standard error due to the numbers of videos and seeds."
_COLUMNS = ("iterations", "iteration_factor", "epochs", "clips", "flops", "seconds", "total")


def make_arms(
    cfg_files: Sequence[Path],
    overrides: Sequence[str],
    *,
    equal_iterations: bool = False,
    lengths: Sequence[float] = (),
) -> list[Arm]:
    """Build the arms of a comparison.

    Speed-ups are relative to the first recipe at length 1. If `lengths` does not include 1,
    speed-ups are relative to the longest training of the first recipe.

    Args:
        cfg_files: Config files of at least two recipes, the baseline first.
        overrides: Alternating config keys and values for all recipes.
        equal_iterations: Also train a copy of the first recipe with as many iterations as the
            second recipe (the paper's "Baseline 1/3.3").
        lengths: Lengths to train each recipe for, as multiples of the recipe's own length. By
            default, only length 1 is trained.

    Returns:
        The arms in the order of the recipes.

    Raises:
        ValueError: There are fewer than two recipes, two config files have the same name, a recipe
            cannot be trained, the metrics of the recipes differ, or the lengths are invalid.
    """
    if len(cfg_files) < 2:
        raise ValueError("A comparison needs at least two configs: --cfg A.yaml --cfg B.yaml")
    check_study(cfg_files, overrides)
    arms = [make_arm(path.stem, path.stem, path, overrides) for path in cfg_files]
    names = {arm.name: title_of(metric_names(arm.recipe)) for arm in arms}
    if len(set(names.values())) > 1:
        judged = ", ".join(f"{name} uses {metrics}" for name, metrics in names.items())
        raise ValueError(f"The configs cannot be compared, because their metrics differ: {judged}.")
    if equal_iterations:
        arms.insert(1, _shortened(arms[0], arms[1]))
    if lengths:
        arms = [longer for arm in arms for longer in at_lengths(arm, lengths)]
    of_first = {arm.length: arm.name for arm in arms if arm.label == arms[0].label}
    baseline = of_first.get(1.0) or of_first[max(of_first)]
    return [replace(arm, baseline=baseline) for arm in arms]


def _shortened(long: Arm, short: Arm) -> Arm:
    """Return a copy of the arm `long` with as many iterations as the arm `short`."""
    factor = long.iterations / short.iterations
    if factor <= 1:
        raise ValueError(
            "--equal-iterations shortens the first config to the iterations of the second, but the "
            f"first config has {long.iterations} iterations and the second has {short.iterations}. "
            "Give the longer config first."
        )
    name = f"{long.name} at 1/{factor:.1f}"
    arm = scaled(long, 1 / factor, name, f"{long.folder}_1_over_{factor:.1f}")
    return replace(arm, label=name, length=1.0)


@dataclass(frozen=True)
class Comparison(Report):
    """Comparison of arms that share one baseline.

    Attributes:
        step_times: Names of the step-time files that `Study.step_seconds` is computed from. None
            if speed-ups are computed from wall-clock times.
    """

    step_times: str | None = None
    name = "report"
    title = "Comparison"

    @property
    def picture(self) -> str:
        return f"{LONG_TITLES[self.metrics[0]].capitalize()} against training time"

    @cached_property
    def scores(self) -> dict[str, Score]:
        """Maps the name of each arm with finished runs to its score."""
        names = self.runs["arm"].unique()
        return {name: score_of(self.runs, name, self.metrics[0]) for name in names}

    @property
    def verdict(self) -> str:
        """One sentence that compares arms with their baseline.

        Arms that are longer or shorter than the baseline are left out. The sentence is empty until
        the baseline and another arm have finished runs.
        """
        baseline = next(arm for arm in self.study.arms if arm.name == arm.baseline)
        clauses = [
            f"{arm.name} is {self._speed_ups(arm)} and {self._change(baseline, arm)}"
            for arm in self.study.arms
            if arm is not baseline and arm.length == baseline.length
            if mean(self.runs, arm.name, "speed_up")
        ]
        if not clauses:
            return ""
        last = [] if self.chance is None else [f"chance is {self.chance:.1f} %"]
        return f"Compared with {baseline.name}, {'; '.join([*clauses, *last])}."

    def _speed_ups(self, arm: Arm) -> str:
        means = self.runs[self.runs["arm"] == arm.name][["speed_up", "total_speed_up"]].mean()
        words = ("faster", "slower", "as fast")
        alone, total = (format_factor(1.0, factor, words) for factor in means)
        return alone if self.step_times else f"{alone} ({total} with evaluation and test)"

    def _change(self, baseline: Arm, arm: Arm) -> str:
        before, after = (self.scores[each.name] for each in (baseline, arm))
        change = after.minus(before)
        size = change._replace(mean=abs(change.mean)).format(0 if change.error >= 2 else 1)
        clear = change.error > 0 and abs(change.mean) >= CLEAR * change.error
        return (
            f"{'loses' if change.mean < 0 else 'gains'} {size} points of "
            f"{metric_title(self.metrics[0])} ({after.format()} % against {before.format()} %"
            f"{'' if clear else ', undecided'})"
        )

    @cached_property
    def levels(self) -> list[dict[str, Any]]:
        """Costs at which each recipe reaches several accuracies, as returned by `levels_of`.

        The list is empty without --lengths, or if no run of the first recipe has finished.
        """
        arms = self.study.arms
        if all(arm.length == 1 for arm in arms) or arms[0].label not in set(self.runs["label"]):
            return []
        return levels_of(self.runs, self.metrics[0])

    def to_json(self) -> dict[str, Any]:
        return {
            **super().to_json(),
            "seconds": f"step times of {self.step_times}" if self.step_times else "wall-clock",
            "verdict": self.verdict or None,
            "warnings": self.warnings(),
            "levels": self.levels,
        }

    def tables(self) -> list[str | Table]:
        columns = [*_COLUMNS, *["clock"] * bool(self.step_times), "speed_up", *self.metrics]
        if not self.levels:
            return [self.table(columns)]
        return [
            levels_table(self.levels, self.metrics[0]),
            *format_break_even(curves_of(self.runs, "seconds", self.metrics[0])),
            explain_curves(self.step_times),
            self.table(columns),
        ]

    def notes(self) -> list[str]:
        speed_up = (
            "The speed-up is the wall-clock training time of the baseline divided by the "
            "wall-clock training time of the config with the same seed, averaged over seeds."
        )
        if self.step_times:
            speed_up = (
                "The speed-up is the step time of the baseline divided by the step time of the "
                f"config. The step time is iterations × the step times of {self.step_times}. It "
                "excludes data loading and evaluation."
            )
        return [
            f"Speed-up and iteration factor are relative to {self.study.arms[0].baseline}. "
            f"{speed_up} The wall-clock training time includes data loading. The wall-clock time "
            "with evaluation also includes all evaluations and the test. ± is the sample standard "
            "deviation over seeds. FLOPs are the training FLOPs of forward and backward passes."
        ]

    def warnings(self) -> list[str]:
        """Return warnings about speed-ups and accuracies that may be misleading."""
        arms = self.study.arms
        texts = [f"{arm.name}: {text}." for arm in arms for text in short_ends(arm.schedule)]
        low = [
            name
            for name, score in self.scores.items()
            if score.mean - CLEAR * score.error <= (self.chance or 0.0)
        ]
        if low and self.chance:
            texts.append(
                f"The accuracy of {format_list(low)} is not clearly above chance. A speed-up at "
                "this accuracy means nothing."
            )
        texts += super().warnings()
        slow = self.runs.loc[self.runs["evaluating"] > self.runs["seconds"], "arm"].unique()
        if len(slow):
            texts.append(
                f"Evaluation and test took longer than training in {', '.join(slow)}. The speed-up "
                "of training does not include this time. To shorten evaluation and test, list "
                "fewer videos in val.csv, or set BN.NUM_BATCHES_PRECISE or "
                "TEST.NUM_ENSEMBLE_VIEWS to a smaller number."
            )
        return texts

    def result(self) -> list[str]:
        texts = [f"Warning: {text}" for text in self.warnings()]
        return [*texts, _ERRORS, f"Verdict: {self.verdict}"] if self.verdict else texts

    def draw(self, path: Path) -> None:
        """Draw the primary metric against the training time, and save the figure.

        With --lengths, additional panels show the metric against iterations and FLOPs. Without
        --lengths, a thin line shows the validations of each run, as in Figure 1 of the paper.
        """
        unit, size = time_unit(self.runs["clock"].max() if len(self.runs) else 0.0)
        runs = self.runs.assign(clock=self.runs["clock"] / size)
        metric = self.metrics[0]
        how = "by step times" if self.step_times else "loading included"
        titles = {"seconds": f"training time, {how} ({unit})"}
        explained = "marks: final results, mean ± standard deviation over n seeds; "
        if has_lengths := bool(self.levels):
            titles |= {"iterations": "iterations", "flops": "training FLOPs"}
            explained += "numbers: × the recipe's length"
        else:
            explained += "thin lines: validations"

        def add(axes: Axes, colours: Mapping[str, str]) -> None:
            if self.chance is not None:
                label = f"chance, {self.chance:.1f} %"
                axes.axhline(self.chance, color=MUTED, ls="--", lw=1, label=label)
            for run in [] if has_lengths else runs.itertuples():
                points = pd.DataFrame(run.result["evaluations"])
                seconds = points["seconds"] * run.clock / run.seconds
                axes.plot(seconds, points[metric], color=colours[run.label], alpha=0.5)
                axes.set_xlim(left=0)

        draw_panels(
            path,
            {title: curves_of(runs, axis, metric) for axis, title in titles.items()},
            runs.groupby("label")["seed"].nunique().to_dict(),
            (LONG_TITLES[metric].capitalize(), f"{LONG_TITLES[metric]} (%)", explained),
            add,
            logarithmic=has_lengths,
        )
