"""Recipes side by side: the arms of a comparison, and the report of their runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from slowfast_patches.config.metrics import metric_names, metric_title
from slowfast_patches.config.scale import as_overrides, scaled_lengths
from slowfast_patches.study.arms import Arm, check_study, make_arm
from slowfast_patches.study.curves import (
    AXES,
    curves_of,
    explain_curves,
    format_break_even,
    format_levels,
    levels_json,
)
from slowfast_patches.study.pictures import LONG_TITLES, plot_lengths, plot_trainings
from slowfast_patches.study.report import (
    MISSING,
    as_json,
    format_mean,
    mean_over_seeds,
    provenance,
    runs_table,
    write_report,
)
from slowfast_patches.study.runs import Results
from slowfast_patches.utils.tables import (
    Mean,
    format_count,
    format_duration,
    format_flops,
    format_table,
)

__all__ = ["Comparison", "format_comparison", "make_arms", "write_comparison"]


def make_arms(
    cfg_files: Sequence[Path], overrides: Sequence[str], *, equal_iterations: bool = False
) -> list[Arm]:
    """The arms to compare, the reference first; `equal_iterations` adds one after it.

    That one is the first, shortened to the second's iterations (the paper's "Baseline 1/3.3").

    Raises:
        ValueError: fewer than two configs, two of the same name, one that cannot be trained, one
            that is judged by other metrics than the first.
    """
    if len(cfg_files) < 2:
        raise ValueError("a comparison takes two configs or more: --cfg A.yaml --cfg B.yaml")
    check_study(cfg_files, overrides)
    arms = [make_arm(path.stem, path.stem, path, overrides) for path in cfg_files]
    first = arms[0]
    for arm in arms:
        if arm.judged_by != first.judged_by:
            raise ValueError(
                f"{first.name} is judged by {first.judged_by} and {arm.name} by {arm.judged_by}, "
                "which do not compare; give recipes of the same data set"
            )
    return [first, _shortened(first, arms[1]), *arms[1:]] if equal_iterations else arms


def _shortened(long: Arm, short: Arm) -> Arm:
    """The arm `long` with its lengths divided so that it has the iterations of `short`."""
    factor = long.iterations / short.iterations
    if factor <= 1:
        raise ValueError(
            f"--equal-iterations shortens the first config ({long.iterations} iterations) to the "
            f"second ({short.iterations}); give the longer one first"
        )
    lengths = as_overrides(scaled_lengths(long.recipe, 1 / factor))
    name = f"{long.name} at 1/{factor:.1f}"
    folder = f"{long.folder}_1_over_{factor:.1f}"
    return make_arm(name, folder, long.cfg_file, (*long.overrides, *lengths))


@dataclass(frozen=True)
class Comparison:
    """Arms, with their lengths next to each other, and the results there are of them.

    command: what reproduces the report.
    step_seconds: seconds of a run by its arm's name, as iterations × step times measured alone,
        which arms are compared by in place of wall-clock times; `step_times` names their files.
    """

    arms: Sequence[Arm]
    seeds: Sequence[int]
    results: Results
    command: str
    step_seconds: Mapping[str, float] = field(default_factory=dict)
    step_times: str | None = None

    @cached_property
    def reference(self) -> Arm:
        """What the others are compared with: the first recipe as it is or, if it is not among its
        lengths, at its longest."""
        lengths = {arm.length: arm for arm in self.arms if arm.label == self.arms[0].label}
        return lengths.get(1.0) or lengths[max(lengths)]

    @property
    def metrics(self) -> tuple[str, ...]:
        """What the arms are judged by, the primary metric first."""
        return metric_names(self.reference.recipe)

    @property
    def has_curves(self) -> bool:
        return any(arm.length != 1 for arm in self.arms)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The `runs_table`."""
        baselines = {arm.name: self.reference.name for arm in self.arms}
        return runs_table(
            self.arms, self.seeds, self.results, self.metrics, baselines, self.step_seconds
        )

    def mean(self, arm: Arm, column: str) -> Mean | None:
        """Of a column of the runs of an arm, over the seeds."""
        if column == "speed_up" and self.step_seconds:  # the same for all seeds
            ratio = self.step_seconds[self.reference.name] / self.step_seconds[arm.name]
            return Mean(ratio, None)
        return mean_over_seeds(self.runs, arm.name, column)

    def to_json(self) -> dict[str, Any]:
        """As plain data; a mean has its `mean` and `std`, a missing value is null."""
        has_points = self.has_curves and self.reference.label in set(self.runs["label"])
        levels = levels_json(self.runs, self.metrics[0]) if has_points else []
        return {
            "command": self.command,
            "metric": self.metrics[0],
            "seconds": f"step times of {self.step_times}" if self.step_times else "wall-clock",
            "levels": levels,
            "configs": [self._arm_json(arm) for arm in self.arms],
        }

    def _arm_json(self, arm: Arm) -> dict[str, Any]:
        """Its runs are without the config, which is the arm's but for the seed."""
        columns = (*_MEANS, *AXES.values(), "speed_up", *self.metrics)
        finished = [seed for seed in self.seeds if (arm.name, seed) in self.results]
        own = self.runs[self.runs["arm"] == arm.name].set_index("seed")
        speed_ups = own["speed_up"].astype(object).where(own["speed_up"].notna(), None)
        runs = [
            {"seed": seed, "finished": seed in finished, "speed_up": speed_ups.get(seed)}
            | {k: v for k, v in self.results.get((arm.name, seed), {}).items() if k != "config"}
            for seed in self.seeds
        ]
        first = self.results[arm.name, finished[0]] if finished else {"config": None}
        return {
            "name": arm.name,
            "label": arm.label,
            "length": arm.length,
            "cfg_file": str(arm.cfg_file),
            "overrides": arm.overrides,
            **{name: as_json(self.mean(arm, name)) for name in columns},
            "step_seconds": self.step_seconds.get(arm.name),
            "config": first["config"],
            "runs": runs,
        }


_MEANS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "iterations": ("iterations", format_count),
    "iteration_factor": ("iteration\nfactor", "{:.2f}×".format),
    "epochs": ("epochs", "{:.1f}".format),
    "clips": ("clips", format_count),
    "flops": ("training\nFLOPs", format_flops),
    "seconds": ("wall-clock,\ntraining", format_duration),
    "evaluating": ("wall-clock,\nevaluation", format_duration),
}
"""Columns of the runs whose means are in the table: headers, and how the numbers are written."""


def format_comparison(comparison: Comparison) -> str:
    """A comparison for a terminal: its curves if it has any, the table of its runs, and why they
    may mislead."""
    parts = [*_of_curves(comparison, markdown=False), _table(comparison)]
    return "\n\n".join([*parts, *_warnings(comparison)])


def _of_curves(comparison: Comparison, *, markdown: bool) -> list[str]:
    """What each accuracy of the first recipe costs, where recipes break even, and how to read it;
    empty without lengths, or before the first recipe has a result."""
    metric = comparison.metrics[0]
    curves = curves_of(comparison.runs, "seconds", metric) if comparison.has_curves else {}
    if comparison.reference.label not in curves:
        return []
    table = format_levels(curves, metric, markdown=markdown)
    return [table, *format_break_even(curves), explain_curves(comparison.step_times)]


def _table(comparison: Comparison, *, markdown: bool = False) -> str:
    headers = ["config", "seeds", *(header for header, _ in _MEANS.values())]
    if comparison.step_times:
        headers.append("steps\nalone")
    headers += ["speed-up", *(f"{metric_title(name)}, %" for name in comparison.metrics)]
    rows = [_cells(comparison, arm) for arm in comparison.arms]
    return format_table(headers, rows, markdown=markdown)


def _cells(comparison: Comparison, arm: Arm) -> list[str]:
    wanted = len(comparison.seeds)
    finished = int((comparison.runs["arm"] == arm.name).sum())
    missing = wanted - finished
    cells = [arm.name, f"{finished} ({missing} {MISSING})" if missing else str(wanted)]
    for name, (_, write) in _MEANS.items():
        mean = comparison.mean(arm, name)
        cells.append(MISSING if mean is None else write(mean.mean))
    if comparison.step_times:
        cells.append(format_duration(comparison.step_seconds[arm.name]))
    faster = format_mean(comparison.mean(arm, "speed_up"), 2, "×")
    if arm is comparison.reference and finished:
        faster = "1×"
    return [*cells, faster, *(format_mean(comparison.mean(arm, m)) for m in comparison.metrics)]


_BUSY = 0.05
"""Share of training spent waiting for a core above which wall-clock times do not compare."""


def _warnings(comparison: Comparison) -> list[str]:
    """Why the speed-ups may mislead."""
    runs = comparison.runs
    texts = list[str]()
    waiting = runs.groupby("arm", sort=False)["waiting"].mean()
    busy = [f"{100 * share:.0f} % of {name}" for name, share in waiting.items() if share > _BUSY]
    if busy and not comparison.step_times:
        texts.append(
            f"The machine was busy: training waited for a core for {', '.join(busy)}. These times "
            "do not compare; --step-times FILE, of benchmarks/step_time.py, has those of steps "
            "alone."
        )
    slow = runs.loc[runs["evaluating"] > runs["seconds"], "arm"].unique()
    if len(slow):
        texts.append(
            f"Evaluation took longer than training in {', '.join(slow)}, and is in no speed-up: "
            "a larger TRAIN.EVAL_PERIOD and MULTIGRID.EVAL_FREQ 1 evaluate less often."
        )
    return texts


def write_comparison(comparison: Comparison, folder: Path) -> None:
    """Write report.md, report.json and report.png into `folder`."""
    path = folder / "report.png"
    metric = comparison.metrics[0]
    how = "by step times" if comparison.step_times else "loading included"
    if comparison.has_curves:
        plot_lengths(comparison.runs, metric, how, path)
    else:
        plot_trainings(comparison.runs, comparison.results, metric, how, path)
    speed_up = "The speed-up is the mean over seeds of the ratio of wall-clock times of training."
    if comparison.step_times:
        speed_up = (
            "The speed-up is the ratio of the times of steps alone: iterations × the step times of "
            f"{comparison.step_times}, without loading and evaluation."
        )
    paragraphs = [
        "# Comparison",
        f"![{LONG_TITLES[metric].capitalize()} against training time]({path.name})",
        *_of_curves(comparison, markdown=True),
        _table(comparison, markdown=True),
        f"Speed-up and iteration factor are relative to {comparison.reference.name}. {speed_up} "
        "Wall-clock of training includes loading. ± is the sample standard deviation over seeds. "
        "FLOPs are those of forward and backward.",
        *_warnings(comparison),
        *provenance(comparison.runs, comparison.command),
    ]
    write_report(folder, "report", comparison.to_json(), paragraphs)
