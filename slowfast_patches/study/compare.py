"""Recipes side by side: the arms of a comparison, and what their runs came to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slowfast_patches.config.metrics import metric_names, metric_title
from slowfast_patches.config.scale import as_overrides, scaled_lengths
from slowfast_patches.study.arms import Arm, check_study, make_arm
from slowfast_patches.study.pictures import LONG_TITLES, plot_trainings
from slowfast_patches.study.report import (
    MISSING,
    Measured,
    as_json,
    measure,
    provenance,
    write_report,
)
from slowfast_patches.study.runs import Results, working_seconds
from slowfast_patches.utils.tables import (
    format_count,
    format_duration,
    format_flops,
    format_table,
    mean_of,
)

__all__ = ["Comparison", "format_comparison", "make_arms", "make_comparison", "write_comparison"]


def make_arms(
    cfg_files: Sequence[Path], overrides: Sequence[str], *, equal_time: bool = False
) -> list[Arm]:
    """The arms to compare, the reference first; `equal_time` adds one after it.

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
    return [first, _shortened(first, arms[1]), *arms[1:]] if equal_time else arms


def _shortened(long: Arm, short: Arm) -> Arm:
    """The arm `long` with its lengths divided so that it has the iterations of `short`."""
    factor = long.iterations / short.iterations
    if factor <= 1:
        raise ValueError(
            f"--equal-time shortens the first config ({long.iterations} iterations) to the second "
            f"({short.iterations}); give the longer one first"
        )
    lengths = as_overrides(scaled_lengths(long.recipe, 1 / factor))
    name, folder = f"{long.name} at 1/{factor:.1f}", f"{long.folder}_1_over_{factor:.1f}"
    return make_arm(name, folder, long.cfg_file, (*long.overrides, *lengths))


@dataclass(frozen=True)
class Comparison:
    """All rows, the first being what the others are compared with; `metrics` are the names of what
    they are judged by, the primary one first, `command` what made them."""

    rows: tuple[Measured, ...]
    metrics: tuple[str, ...]
    seeds: tuple[int, ...]
    command: str

    def to_json(self) -> dict[str, Any]:
        """As plain data; a mean has its `mean` and `std`, a missing value is null."""
        return {
            "command": self.command,
            "metric": self.metrics[0],
            "configs": [self._row_json(row) for row in self.rows],
        }

    def _row_json(self, row: Measured) -> dict[str, Any]:
        """Its runs are without the config, which is the row's but for the seed."""
        speed_ups = row.factors(working_seconds)
        runs = [
            {"seed": seed, "finished": seed in row.runs, "speed_up": speed_ups.get(seed)}
            | {key: value for key, value in row.runs.get(seed, {}).items() if key != "config"}
            for seed in self.seeds
        ]
        return {
            "name": row.arm.name,
            "cfg_file": str(row.arm.cfg_file),
            "overrides": row.arm.overrides,
            **_means(row),
            "speed_up": as_json(row.speed_up),
            **{name: as_json(row.metric(name)) for name in self.metrics},
            "config": next((run["config"] for run in row.runs.values()), None),
            "runs": runs,
        }


def make_comparison(
    arms: Sequence[Arm], seeds: Sequence[int], results: Results, command: str
) -> Comparison:
    """Summarise the results there are; `command` is what reproduces them."""
    rows = tuple(measure(arm, arms[0], seeds, results) for arm in arms)
    return Comparison(rows, metric_names(arms[0].recipe), tuple(seeds), command)


def _means(row: Measured) -> dict[str, float | None]:
    means = {
        "iterations": row.mean(lambda run: run["iterations"]),
        "iteration_factor": mean_of(row.factors(lambda run: run["iterations"]).values()),
        "epochs": row.mean(lambda run: run["epochs"]),
        "clips": row.mean(lambda run: run["clips"]),
        "flops": row.mean(lambda run: run["flops"]),
        "seconds": row.mean(working_seconds),
        "evaluating": row.mean(lambda run: run["seconds"]["evaluating"]),
    }
    return {name: None if mean is None else mean.mean for name, mean in means.items()}


_COLUMNS: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("iterations", format_count),
    ("iteration\nfactor", "{:.2f}×".format),
    ("epochs", "{:.1f}".format),
    ("clips", format_count),
    ("training\nFLOPs", format_flops),
    ("training +\nloading", format_duration),
    ("evalu-\nation", format_duration),
)
"""Headers of the means, in their order, and how they are written."""


def format_comparison(comparison: Comparison, *, markdown: bool = False) -> str:
    """The table of a comparison, for a terminal or in Markdown."""
    headers = ["config", "seeds", *(header for header, _ in _COLUMNS), "speed-up"]
    headers += [f"{metric_title(name)}, %" for name in comparison.metrics]
    if markdown:
        headers = [header.replace("-\n", "").replace("\n", " ") for header in headers]
    rows = [_cells(comparison, row) for row in comparison.rows]
    return format_table(headers, rows, markdown=markdown)


def _cells(comparison: Comparison, row: Measured) -> list[str]:
    wanted, missing = len(comparison.seeds), len(comparison.seeds) - len(row.runs)
    means = zip(_means(row).values(), _COLUMNS, strict=True)
    metrics = [row.metric(name) for name in comparison.metrics]
    faster = "1×" if row is comparison.rows[0] else row.speed_up and f"{row.speed_up.format(2)}×"
    return [
        row.arm.name,
        f"{wanted - missing} ({missing} {MISSING})" if missing else str(wanted),
        *(MISSING if value is None else write(value) for value, (_, write) in means),
        faster if faster and row.runs else MISSING,
        *(mean.format() if mean else MISSING for mean in metrics),
    ]


def write_comparison(comparison: Comparison, output: Path) -> None:
    """Write report.md, report.json and report.png into `output`."""
    plot_trainings(comparison.rows, comparison.metrics[0], output / "report.png")
    write_report(output, "report", comparison.to_json(), _paragraphs(comparison))


def _paragraphs(comparison: Comparison) -> list[str]:
    first, metric = comparison.rows[0], comparison.metrics[0]
    return [
        "# Comparison",
        format_comparison(comparison, markdown=True),
        f"![{LONG_TITLES[metric].capitalize()} against training time](report.png)",
        f"Speed-up and iteration factor are relative to {first.arm.name}. The speed-up is the mean "
        "over seeds of the ratio of wall-clock times, of training with loading, without "
        "evaluation. ± is the sample standard deviation over seeds. FLOPs are those of forward and "
        "backward.",
        *provenance(comparison.rows, comparison.command),
    ]
