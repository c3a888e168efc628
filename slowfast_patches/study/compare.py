"""Recipes side by side: the arms of a comparison, and the report of their runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from multigrid.cost import short_ends
from slowfast_patches.config.metrics import metric_names, metric_title
from slowfast_patches.study.arms import (
    Arm,
    at_lengths,
    check_study,
    make_arm,
    scaled,
)
from slowfast_patches.study.curves import (
    AXES,
    LONG_TITLES,
    curves_of,
    draw_curves,
    explain_curves,
    format_break_even,
    format_levels,
    levels_of,
    set_log_axis,
)
from slowfast_patches.study.report import (
    COLUMNS,
    MISSING,
    arm_json,
    format_mean,
    machine_warnings,
    mean,
    provenance,
    title_of,
    write_report,
)
from slowfast_patches.study.runs import Study
from slowfast_patches.study.verdict import at_chance, chance_of, explain_errors, verdict
from slowfast_patches.utils.pictures import (
    COLOURS,
    MUTED,
    add_legend,
    new_figure,
    save_figure,
    time_unit,
)
from slowfast_patches.utils.tables import (
    format_count,
    format_flops,
    format_list,
    format_table,
)

__all__ = ["Comparison", "format_comparison", "make_arms", "write_comparison"]


def make_arms(
    cfg_files: Sequence[Path],
    overrides: Sequence[str],
    *,
    equal_iterations: bool = False,
    lengths: Sequence[float] = (),
) -> list[Arm]:
    """The arms to compare. Their baseline is the first recipe as it is or, if it is not among the
    lengths, at its longest.

    equal_iterations: add the first, shortened to the second's iterations (the paper's "Baseline
        1/3.3").
    lengths: multiples of the recipes' lengths, which each gets.

    Raises:
        ValueError: fewer than two configs, two of the same name, one that cannot be trained, one
            that is judged by other metrics than the first, lengths that cannot be.
    """
    if len(cfg_files) < 2:
        raise ValueError("a comparison takes two configs or more: --cfg A.yaml --cfg B.yaml")
    check_study(cfg_files, overrides)
    arms = [make_arm(path.stem, path.stem, path, overrides) for path in cfg_files]
    names = {arm.name: title_of(metric_names(arm.recipe)) for arm in arms}
    if len(set(names.values())) > 1:
        judged = ", ".join(f"{name} by {metrics}" for name, metrics in names.items())
        raise ValueError(f"recipes of other metrics do not compare: {judged}")
    if equal_iterations:
        arms.insert(1, _shortened(arms[0], arms[1]))
    if lengths:
        arms = [longer for arm in arms for longer in at_lengths(arm, lengths)]
    of_first = {arm.length: arm.name for arm in arms if arm.label == arms[0].label}
    baseline = of_first.get(1.0) or of_first[max(of_first)]
    return [replace(arm, baseline=baseline) for arm in arms]


def _shortened(long: Arm, short: Arm) -> Arm:
    """The arm `long` with its lengths divided so that it has the iterations of `short`."""
    factor = long.iterations / short.iterations
    if factor <= 1:
        raise ValueError(
            f"--equal-iterations shortens the first config ({long.iterations} iterations) to the "
            f"second ({short.iterations}); give the longer one first"
        )
    name = f"{long.name} at 1/{factor:.1f}"
    return scaled(long, 1 / factor, name, f"{long.folder}_1_over_{factor:.1f}")


@dataclass(frozen=True)
class Comparison:
    """A study of arms with one baseline, and its finished runs.

    command: what reproduces the report; step_times: the files of the study's `step_seconds`.
    """

    study: Study
    runs: pd.DataFrame
    command: str
    step_times: str | None = None

    @cached_property
    def chance(self) -> float | None:
        """What naming the commonest class always would score, in per cent."""
        return chance_of(self.study.arms[0].recipe)

    @property
    def verdict(self) -> str:
        """One sentence: how much faster, what that costs, and chance."""
        arms, metric = self.study.arms, self.metrics[0]
        return verdict(arms, self.runs, metric, self.chance, by_clock=not self.step_times)

    @property
    def metrics(self) -> tuple[str, ...]:
        """What the arms are judged by, the primary metric first."""
        return metric_names(self.study.arms[0].recipe)

    @property
    def levels(self) -> list[dict[str, Any]]:
        """The `levels_of` the runs; empty without lengths, or before the first recipe has a
        result."""
        first = self.study.arms[0].label
        has_lengths = any(arm.length != 1 for arm in self.study.arms)
        is_there = first in set(self.runs["label"])
        return levels_of(self.runs, self.metrics[0]) if has_lengths and is_there else []

    def to_json(self) -> dict[str, Any]:
        """The comparison as plain data."""
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


def format_comparison(comparison: Comparison) -> str:
    """A comparison for a terminal; its warnings and its verdict are last."""
    paragraphs = [*_curves(comparison), _table(comparison), *_result(comparison)]
    return "\n\n".join(paragraphs)


def _result(comparison: Comparison) -> list[str]:
    """Return the warnings, and the verdict after what its ± means."""
    warnings = [f"Warning: {text}" for text in _warnings(comparison)]
    if not comparison.verdict:
        return warnings
    return [
        *warnings,
        explain_errors(comparison.runs, comparison.metrics[0]),
        f"Verdict: {comparison.verdict}",
    ]


def _curves(comparison: Comparison, *, markdown: bool = False) -> list[str]:
    """What each accuracy of the first recipe costs, where recipes break even, and how to read it;
    empty without levels."""
    levels = comparison.levels
    metric = comparison.metrics[0]
    if not levels:
        return []
    return [
        format_levels(levels, metric, markdown=markdown),
        *format_break_even(curves_of(comparison.runs, "seconds", metric)),
        explain_curves(comparison.step_times),
    ]


def _table(comparison: Comparison, *, markdown: bool = False) -> str:
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
    return format_table(headers, rows, markdown=markdown)


_BUSY = 0.05
"""Share of training spent waiting for a core above which wall-clock times do not compare."""


def _warnings(comparison: Comparison) -> list[str]:
    """Return why the speed-ups or the accuracies may mislead."""
    runs = comparison.runs
    texts = [
        f"{arm.name}: {text}." for arm in comparison.study.arms for text in short_ends(arm.schedule)
    ]
    if names := at_chance(runs, comparison.metrics[0], comparison.chance):
        texts.append(
            f"{format_list(names)} hardly differs from chance: its speed means nothing yet."
        )
    texts += machine_warnings(runs)
    waiting = runs.groupby("arm", sort=False)["waiting"].mean()
    busy = [f"{100 * share:.0f} % of {name}" for name, share in waiting.items() if share > _BUSY]
    if busy and not comparison.step_times:
        texts.append(
            f"The machine was busy: training waited for a core for {', '.join(busy)}. These times "
            "do not compare; --step-times FILE has those of steps measured alone "
            "(docs/performance.md)."
        )
    slow = runs.loc[runs["evaluating"] > runs["seconds"], "arm"].unique()
    if len(slow):
        texts.append(
            f"Evaluation and test took longer than training in {', '.join(slow)}, and are in the "
            "speed-up with evaluation alone: a shorter val.csv, a smaller BN.NUM_BATCHES_PRECISE "
            "and fewer TEST.NUM_ENSEMBLE_VIEWS shorten them."
        )
    return texts


def write_comparison(comparison: Comparison) -> None:
    """Write report.md, report.json and report.png into the study's folder."""
    folder = comparison.study.output
    _plot(comparison, folder / "report.png")
    speed_up = "The speed-up is the mean over seeds of the ratio of wall-clock times of training."
    if comparison.step_times:
        speed_up = (
            "The speed-up is the ratio of the times of steps alone: iterations × the step times of "
            f"{comparison.step_times}, without loading and evaluation."
        )
    title = LONG_TITLES[comparison.metrics[0]].capitalize()
    paragraphs = [
        "# Comparison",
        *_result(comparison),
        f"![{title} against training time](report.png)",
        *_curves(comparison, markdown=True),
        _table(comparison, markdown=True),
        f"Speed-up and iteration factor are relative to {comparison.study.arms[0].baseline}. "
        f"{speed_up} Wall-clock of training includes loading. ± is the sample standard deviation "
        "over seeds. With evaluation means with all evaluations and the test. FLOPs are those of "
        "forward and backward.",
        *provenance(comparison.runs, comparison.command),
    ]
    write_report(folder, "report", comparison.to_json(), paragraphs)


def _plot(comparison: Comparison, path: Path) -> None:
    """The metric against time and, with lengths, iterations and FLOPs; without, the validations of
    each run as a line, as in the paper's Figure 1."""
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
    explained = "mean over seeds ± standard deviation; numbers: × the recipe's length"
    figure, panels = new_figure(rows=1, columns=len(names), width=4 + 4 * len(names), height=5)
    for axes, name in zip(panels, names, strict=True):
        draw_curves(axes, curves_of(runs, name, metric))
        title, write = titles[name]
        axes.set_xlabel(title)
        if has_lengths:
            set_log_axis(axes, write)
    if comparison.chance is not None:
        label = f"chance, {comparison.chance:.1f} %"
        for axes in panels:
            axes.axhline(comparison.chance, color=MUTED, ls="--", lw=1, label=label)
    panels[0].set_ylabel(f"{LONG_TITLES[metric]} (%)")
    if not has_lengths:
        explained = "lines: validation, marks: final results"
        labels = list(runs["label"].unique())
        for run in runs.itertuples():
            points = pd.DataFrame(run.result["evaluations"])
            seconds = points["seconds"] * run.clock / run.seconds
            colour = COLOURS[labels.index(run.label) % len(COLOURS)]
            panels[0].plot(seconds, points[metric], color=colour, alpha=0.5)
        panels[0].set_xlim(left=0)
    if len(runs):
        add_legend(figure, panels[0], explained, columns=4)
    save_figure(figure, path)
