"""Recipes side by side: the arms of a comparison, and what their runs came to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slowfast_patches.config.metrics import metric_names, metric_title
from slowfast_patches.config.scale import as_overrides, scaled_lengths
from slowfast_patches.study.arms import Arm, check_study, make_arm
from slowfast_patches.study.curves.curves import Curves, StepTimed, make_curves
from slowfast_patches.study.curves.families import Family
from slowfast_patches.study.curves.picture import plot_lengths
from slowfast_patches.study.curves.texts import explain_curves, format_break_even, format_levels
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

__all__ = [
    "Comparison",
    "compare_lengths",
    "compare_rows",
    "format_comparison",
    "make_arms",
    "make_comparison",
    "write_comparison",
]


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
    """All rows, and the arm that they are compared with; `metrics` are the names of what they are
    judged by, the primary one first, `command` what made them. Of recipes at several lengths it has
    their curves. `timed` has times of the rows' runs beside those that they took. `note` is said
    above everything."""

    rows: tuple[Measured, ...]
    reference: Arm
    metrics: tuple[str, ...]
    seeds: tuple[int, ...]
    command: str
    curves: Curves | None = None
    timed: StepTimed | None = None
    title: str = "Comparison"
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """As plain data; a mean has its `mean` and `std`, a missing value is null."""
        return {
            "title": self.title,
            **({"note": self.note} if self.note else {}),
            "command": self.command,
            "metric": self.metrics[0],
            **(self.curves.to_json() if self.curves else {}),
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
            **({"step_seconds": self.timed.seconds[row.arm.name]} if self.timed else {}),
            "speed_up": as_json(row.speed_up),
            **{name: as_json(row.metric(name)) for name in self.metrics},
            "config": next((run["config"] for run in row.runs.values()), None),
            "runs": runs,
        }


def make_comparison(
    arms: Sequence[Arm], seeds: Sequence[int], results: Results, command: str
) -> Comparison:
    """Summarise the results there are, the first arm being the reference; `command` is what
    reproduces them."""
    rows = tuple(measure(arm, arms[0], seeds, results) for arm in arms)
    return Comparison(rows, arms[0], metric_names(arms[0].recipe), tuple(seeds), command)


def compare_lengths(
    families: Sequence[Family],
    seeds: Sequence[int],
    results: Results,
    command: str,
    timed: StepTimed | None = None,
) -> Comparison:
    """Summarise the results there are of recipes at several lengths.

    The reference is the first recipe as it is or, if it is not among its lengths, at its longest.
    """
    first = families[0].arms
    reference = first.get(1.0) or first[max(first)]
    metrics = metric_names(reference.recipe)
    arms = [arm for family in families for arm in family.arms.values()]
    rows = tuple(measure(arm, reference, seeds, results) for arm in arms)
    curves = make_curves(families, seeds, results, metrics[0], timed)
    return Comparison(rows, reference, metrics, tuple(seeds), command, curves)


def compare_rows(
    labelled: Mapping[str, Arm],
    seeds: Sequence[int],
    results: Results,
    command: str,
    timed: StepTimed | None = None,
) -> Comparison:
    """Summarise the results there are of arms, each under a label; the first is the reference."""
    first = next(iter(labelled.values()))
    rows = [
        replace(measure(arm, first, seeds, results), arm=replace(arm, name=label))
        for label, arm in labelled.items()
    ]
    if timed is not None:
        seconds = {label: timed.seconds[arm.name] for label, arm in labelled.items()}
        timed = timed._replace(seconds=seconds)
    reference, metrics = rows[0].arm, metric_names(first.recipe)
    return Comparison(tuple(rows), reference, metrics, tuple(seeds), command, timed=timed)


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


def format_comparison(comparison: Comparison) -> str:
    """A comparison for a terminal: the table of its runs, after what its curves say if it has
    any."""
    return "\n\n".join([*_of_curves(comparison.curves, markdown=False), _table(comparison)])


def _of_curves(curves: Curves | None, *, markdown: bool) -> list[str]:
    """What each accuracy of the baseline costs, where arms break even, and how both are read."""
    if curves is None or not curves.levels():
        return []
    table = format_levels(curves, markdown=markdown)
    return [table, *format_break_even(curves), explain_curves(curves)]


def _table(comparison: Comparison, *, markdown: bool = False) -> str:
    headers = ["config", "seeds", *(header for header, _ in _COLUMNS), "speed-up"]
    headers += ["by step\ntimes", "speed-up\nby these"] if comparison.timed else []
    headers += [f"{metric_title(name)}, %" for name in comparison.metrics]
    if markdown:
        headers = [header.replace("-\n", "").replace("\n", " ") for header in headers]
    rows = [_cells(comparison, row) for row in comparison.rows]
    return format_table(headers, rows, markdown=markdown)


def _cells(comparison: Comparison, row: Measured) -> list[str]:
    wanted, missing = len(comparison.seeds), len(comparison.seeds) - len(row.runs)
    means = zip(_means(row).values(), _COLUMNS, strict=True)
    metrics = [row.metric(name) for name in comparison.metrics]
    faster = row.speed_up and f"{row.speed_up.format(2)}×"
    if row.arm is comparison.reference:
        faster = "1×"
    return [
        row.arm.name,
        f"{wanted - missing} ({missing} {MISSING})" if missing else str(wanted),
        *(MISSING if value is None else write(value) for value, (_, write) in means),
        faster if faster and row.runs else MISSING,
        *_by_step_times(comparison, row),
        *(mean.format() if mean else MISSING for mean in metrics),
    ]


def _by_step_times(comparison: Comparison, row: Measured) -> list[str]:
    if comparison.timed is None:
        return []
    seconds, name = comparison.timed.seconds, row.arm.name
    faster = seconds[comparison.reference.name] / seconds[name]
    return [format_duration(seconds[name]), f"{faster:.2f}×"]


def write_comparison(comparison: Comparison, folder: Path, name: str = "report") -> None:
    """Write NAME.md, NAME.json and NAME.png into `folder`."""
    path = folder / f"{name}.png"
    if comparison.curves is None:
        plot_trainings(comparison.rows, comparison.metrics[0], path)
    else:
        plot_lengths(comparison.curves, path, comparison.note)
    write_report(folder, name, comparison.to_json(), _paragraphs(comparison, path.name))


def _paragraphs(comparison: Comparison, picture: str) -> list[str]:
    accuracy = LONG_TITLES[comparison.metrics[0]].capitalize()
    return [
        f"# {comparison.title}",
        *([f"**{comparison.note}**"] if comparison.note else []),
        f"![{accuracy} against training time]({picture})",
        *_of_curves(comparison.curves, markdown=True),
        _table(comparison, markdown=True),
        f"Speed-up and iteration factor are relative to {comparison.reference.name}. The speed-up "
        "is the mean over seeds of the ratio of wall-clock times, of training with loading, "
        "without evaluation. ± is the sample standard deviation over seeds. FLOPs are those of "
        "forward and backward.",
        *_explain_step_times(comparison),
        *provenance(comparison.rows, comparison.command),
    ]


def _explain_step_times(comparison: Comparison) -> list[str]:
    if comparison.timed is None:
        return []
    return [
        f"By step times: iterations × those of {comparison.timed.source}, measured alone, without "
        "loading and evaluation."
    ]
