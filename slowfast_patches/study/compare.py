"""Comparison of recipes: its arms, and the report of their runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from multigrid.cost import short_ends
from slowfast_patches.config.metrics import metric_names, metric_title
from slowfast_patches.study.arms import Arm, at_lengths, check_study, make_arm, scaled
from slowfast_patches.study.curves import (
    AXES,
    LONG_TITLES,
    curves_of,
    draw_chance,
    draw_curves,
    explain_curves,
    format_break_even,
    levels_of,
    levels_table,
    set_log_axis,
)
from slowfast_patches.study.report import (
    COLUMNS,
    MISSING,
    Report,
    Table,
    arm_json,
    format_mean,
    machine_warnings,
    mean,
    provenance,
    title_of,
)
from slowfast_patches.study.runs import Study
from slowfast_patches.study.verdict import at_chance, chance_of, explain_errors, verdict
from slowfast_patches.utils.pictures import (
    COLOURS,
    add_legend,
    new_figure,
    save_figure,
    time_unit,
)
from slowfast_patches.utils.tables import format_count, format_flops, format_list

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def make_arms(
    cfg_files: Sequence[Path],
    overrides: Sequence[str],
    *,
    equal_iterations: bool = False,
    lengths: Sequence[float] = (),
) -> list[Arm]:
    """Build the arms of a comparison.

    Speed-ups are relative to the first recipe at its own length. If that length is not trained,
    they are relative to the longest training of the first recipe.

    Args:
        cfg_files: two recipes or more, the baseline first.
        overrides: KEY VALUE pairs for all of them.
        equal_iterations: add the first recipe, shortened to the iterations of the second (the
            paper's "Baseline 1/3.3").
        lengths: multiples of its own length at which each recipe is trained.

    Returns:
        The arms in the order of the recipes.

    Raises:
        ValueError: There are fewer than two recipes, two have the same file name, one cannot be
            trained, their metrics differ, or the lengths are invalid.
    """
    if len(cfg_files) < 2:
        raise ValueError("A comparison needs two configs or more: --cfg A.yaml --cfg B.yaml")
    check_study(cfg_files, overrides)
    arms = [make_arm(path.stem, path.stem, path, overrides) for path in cfg_files]
    names = {arm.name: title_of(metric_names(arm.recipe)) for arm in arms}
    if len(set(names.values())) > 1:
        judged = ", ".join(f"{name} by {metrics}" for name, metrics in names.items())
        raise ValueError(f"The configs have different metrics and cannot be compared: {judged}.")
    if equal_iterations:
        arms.insert(1, _shortened(arms[0], arms[1]))
    if lengths:
        arms = [longer for arm in arms for longer in at_lengths(arm, lengths)]
    of_first = {arm.length: arm.name for arm in arms if arm.label == arms[0].label}
    baseline = of_first.get(1.0) or of_first[max(of_first)]
    return [replace(arm, baseline=baseline) for arm in arms]


def _shortened(long: Arm, short: Arm) -> Arm:
    """Return the arm `long`, shortened to the iterations of the arm `short`."""
    factor = long.iterations / short.iterations
    if factor <= 1:
        raise ValueError(
            f"--equal-iterations shortens the first config ({long.iterations} iterations) to the "
            f"second ({short.iterations} iterations). Give the longer one first."
        )
    name = f"{long.name} at 1/{factor:.1f}"
    return scaled(long, 1 / factor, name, f"{long.folder}_1_over_{factor:.1f}")


@dataclass(frozen=True)
class Comparison:
    """Study of arms with one baseline, and its finished runs.

    Attributes:
        study: the arms and the seeds.
        runs: table of `Study.runs`.
        command: command line that reproduces the report.
        step_times: names of the files behind `Study.step_seconds`, or None for wall-clock times.
    """

    study: Study
    runs: pd.DataFrame
    command: str
    step_times: str | None = None

    @cached_property
    def chance(self) -> float | None:
        """Accuracy in per cent of always predicting the most common class."""
        return chance_of(self.study.arms[0].recipe)

    @property
    def verdict(self) -> str:
        """One sentence with the speed-ups, the changes in accuracy, and chance."""
        arms, metric = self.study.arms, self.metrics[0]
        return verdict(arms, self.runs, metric, self.chance, by_clock=not self.step_times)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics, the primary one first."""
        return metric_names(self.study.arms[0].recipe)

    @property
    def levels(self) -> list[dict[str, Any]]:
        """Costs of accuracies, as `levels_of` returns them.

        The list is empty without --lengths, and before the first recipe has a result.
        """
        first = self.study.arms[0].label
        has_lengths = any(arm.length != 1 for arm in self.study.arms)
        is_there = first in set(self.runs["label"])
        return levels_of(self.runs, self.metrics[0]) if has_lengths and is_there else []

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        return {
            "command": self.command,
            "metric": self.metrics[0],
            "seconds": f"step times of {self.step_times}" if self.step_times else "wall-clock",
            "seeds": self.study.seeds,
            "chance": self.chance,
            "verdict": self.verdict or None,
            "warnings": _warnings(self),
            "levels": self.levels,
            "configs": [arm_json(arm, self.runs, self.metrics) for arm in self.study.arms],
        }


def comparison_report(comparison: Comparison) -> Report:
    """Return the report of a comparison.

    On a terminal, the warnings and the verdict come last, where they are seen. In the Markdown
    file they come first.
    """
    speed_up = "The speed-up is the mean over seeds of the ratio of wall-clock times of training."
    if comparison.step_times:
        speed_up = (
            "The speed-up is the ratio of the times of steps alone: iterations × the step times of "
            f"{comparison.step_times}, without loading and evaluation."
        )
    title = LONG_TITLES[comparison.metrics[0]].capitalize()
    table = _table(comparison)
    notes = (
        f"Speed-up and iteration factor are relative to {comparison.study.arms[0].baseline}. "
        f"{speed_up} Wall-clock of training includes loading. ± is the sample standard deviation "
        "over seeds. Wall-clock with evaluation includes all evaluations and the test. FLOPs are "
        "those of forward and backward."
    )
    return Report(
        name="report",
        title="Comparison",
        summary=[*_curves(comparison), table, *_result(comparison)],
        body=[
            *_result(comparison),
            f"![{title} against training time](report.png)",
            *_curves(comparison),
            table,
            notes,
            *provenance(comparison.runs),
        ],
        command=comparison.command,
        data=comparison.to_json(),
        draw=partial(_draw, comparison),
    )


def _result(comparison: Comparison) -> list[str]:
    """Return the warnings, followed by the verdict and its explanation if there is one."""
    warnings = [f"Warning: {text}" for text in _warnings(comparison)]
    if not comparison.verdict:
        return warnings
    return [
        *warnings,
        explain_errors(comparison.runs, comparison.metrics[0]),
        f"Verdict: {comparison.verdict}",
    ]


def _curves(comparison: Comparison) -> list[str | Table]:
    """Return the table of levels, the break-even points and how to read them.

    The list is empty if the comparison has no levels.
    """
    levels = comparison.levels
    metric = comparison.metrics[0]
    if not levels:
        return []
    return [
        levels_table(levels, metric),
        *format_break_even(curves_of(comparison.runs, "seconds", metric)),
        explain_curves(comparison.step_times),
    ]


def _table(comparison: Comparison) -> Table:
    seeds = len(comparison.study.seeds)
    runs = comparison.runs
    columns = [name for name in COLUMNS if name != "clock" or comparison.step_times]
    headers = ["config", "seeds", *(COLUMNS[name][0] for name in columns), "speed-up"]
    headers += [f"{metric_title(name)}, %" for name in comparison.metrics]
    rows = list[list[str]]()
    for arm in comparison.study.arms:
        finished = int((runs["arm"] == arm.name).sum())
        missing = f" ({seeds - finished} {MISSING})" if finished < seeds else ""
        means = {name: mean(runs, arm.name, name) for name in columns}
        faster = format_mean(mean(runs, arm.name, "speed_up"), 2, "×")
        rows.append(
            [
                arm.name,
                f"{finished}{missing}",
                *(COLUMNS[name][1](m.mean) if m else MISSING for name, m in means.items()),
                "1×" if finished and arm.name == arm.baseline else faster,
                *(format_mean(mean(runs, arm.name, metric)) for metric in comparison.metrics),
            ]
        )
    if comparison.chance is not None:
        blank = [""] * (len(headers) - len(comparison.metrics) - 1)
        rest = [""] * (len(comparison.metrics) - 1)
        rows.append(["chance", *blank, f"{comparison.chance:.1f}", *rest])
    return Table(headers, rows)


_BUSY = 0.05
"""Largest share of training spent waiting for a CPU core that needs no warning."""


def _warnings(comparison: Comparison) -> list[str]:
    """Return the reasons why speed-ups or accuracies may mislead."""
    runs = comparison.runs
    texts = [
        f"{arm.name}: {text}." for arm in comparison.study.arms for text in short_ends(arm.schedule)
    ]
    if names := at_chance(runs, comparison.metrics[0], comparison.chance):
        texts.append(
            f"The accuracy of {format_list(names)} is hardly above chance. Its speed means "
            "nothing yet."
        )
    texts += machine_warnings(runs)
    waiting = runs.groupby("arm", sort=False)["waiting"].mean()
    busy = [f"{100 * share:.0f} % of {name}" for name, share in waiting.items() if share > _BUSY]
    if busy and not comparison.step_times:
        texts.append(
            f"The machine was busy: training waited for a core for {', '.join(busy)}. These times "
            "are not comparable. Give --step-times FILE to compare by step times that were "
            "measured alone (docs/performance.md)."
        )
    slow = runs.loc[runs["evaluating"] > runs["seconds"], "arm"].unique()
    if len(slow):
        texts.append(
            f"Evaluation and test took longer than training in {', '.join(slow)}. They count only "
            "in the speed-up with evaluation. To shorten them, use a shorter val.csv, a smaller "
            "BN.NUM_BATCHES_PRECISE and fewer TEST.NUM_ENSEMBLE_VIEWS."
        )
    return texts


def _draw(comparison: Comparison, path: Path) -> None:
    """Draw the primary metric against the training time.

    With --lengths there are panels for iterations and FLOPs, too. Without, a thin line shows the
    validations of each run, as in Figure 1 of the paper.
    """
    unit, size = time_unit(comparison.runs["clock"].max() if len(comparison.runs) else 0.0)
    runs = comparison.runs.assign(clock=comparison.runs["clock"] / size)
    metric = comparison.metrics[0]
    how = "by step times" if comparison.step_times else "loading included"
    titles = {
        "seconds": (f"training time, {how} ({unit})", "{:g}".format),
        "iterations": ("iterations", format_count),
        "flops": ("training FLOPs", lambda flops: format_flops(flops).removesuffix("FLOP")),
    }
    has_lengths = bool(comparison.levels)
    names = list(AXES) if has_lengths else ["seconds"]
    seeds = runs.groupby("label")["seed"].nunique().to_dict()
    figure, panels = new_figure(rows=1, columns=len(names), width=4 + 4 * len(names), height=5)
    for axes, name in zip(panels, names, strict=True):
        draw_curves(axes, curves_of(runs, name, metric), seeds)
        if comparison.chance is not None:
            draw_chance(axes, comparison.chance)
        title, write = titles[name]
        axes.set_xlabel(title)
        if has_lengths:
            set_log_axis(axes, write)
    panels[0].set_ylabel(f"{LONG_TITLES[metric]} (%)")
    explained = "marks: final results, mean ± standard deviation over n seeds"
    if has_lengths:
        explained += "; numbers: × the recipe's length"
    else:
        explained += "; thin lines: validations"
        _draw_validations(comparison, runs, panels[0])
    if len(runs):
        add_legend(figure, panels[0], explained, columns=2)
    cost = "cost" if has_lengths else "training time"
    figure.suptitle(f"{LONG_TITLES[metric].capitalize()} against {cost}", fontsize=11)
    save_figure(figure, path)


def _draw_validations(comparison: Comparison, runs: pd.DataFrame, axes: Axes) -> None:
    """Draw the validations of each run as a thin line in the colour of its recipe."""
    labels = list(runs["label"].unique())
    for run in runs.itertuples():
        points = pd.DataFrame(run.result["evaluations"])
        seconds = points["seconds"] * run.clock / run.seconds
        colour = COLOURS[labels.index(run.label) % len(COLOURS)]
        axes.plot(seconds, points[comparison.metrics[0]], color=colour, alpha=0.5)
    axes.set_xlim(left=0)
