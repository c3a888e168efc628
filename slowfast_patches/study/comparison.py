"""What a comparison found: a table, its numbers, and accuracy against training time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slowfast_patches.config.metrics import metric_names, metric_title
from slowfast_patches.study.runs import Arm, Result, working_seconds
from slowfast_patches.utils.plots import COLOURS, add_legend, new_figure, save_figure, time_unit
from slowfast_patches.utils.report import (
    Mean,
    format_count,
    format_duration,
    format_flops,
    format_table,
    mean_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Comparison", "Row", "format_comparison", "make_comparison", "write_comparison"]

_MISSING = "missing"

_LONG_TITLES = {"top1": "top-1 accuracy", "map": "mean average precision"}
"""Primary metrics, where there is room."""


@dataclass(frozen=True)
class Row:
    """A arm over its seeds: means of what the finished runs measured, None before the first.

    `seconds` are those of training, loading included; `evaluating` the others. `speed_ups` (wall
    clock, by seed) and `iteration_factor` are relative to the first arm, over the seeds that
    both have finished. `metrics` has the comparison's, by name, in per cent. `runs` has the result
    of every seed, None in place of a missing one.
    """

    name: str
    cfg_file: str
    overrides: tuple[str, ...]
    iterations: float | None
    epochs: float | None
    clips: float | None
    flops: float | None
    seconds: float | None
    evaluating: float | None
    speed_ups: Mapping[int, float]
    iteration_factor: float | None
    metrics: Mapping[str, Mean | None]
    runs: Mapping[int, Result | None]

    @property
    def speed_up(self) -> Mean | None:
        return mean_of(self.speed_ups.values())

    @property
    def finished(self) -> list[Result]:
        return [run for run in self.runs.values() if run is not None]


@dataclass(frozen=True)
class Comparison:
    """All rows, the first being what the others are compared with, and what made them.

    `metrics` are the names of what the rows are judged by, the primary one first.
    """

    rows: tuple[Row, ...]
    metrics: tuple[str, ...]
    command: str

    @property
    def settings(self) -> str:
        """The keys that the command sets in every config, but for where the data lies."""
        keys = self.rows[0].overrides
        pairs = zip(keys[::2], keys[1::2], strict=True)
        return ", ".join(f"{k} {value}" for k, value in pairs if not k.startswith("DATA.PATH_"))

    def to_json(self) -> dict[str, Any]:
        """As plain data; a mean has its `mean` and `std`, a missing value is null."""
        return {
            "command": self.command,
            "metric": self.metrics[0],
            "machines": _distinct(self.rows, "machine"),
            "versions": _distinct(self.rows, "versions"),
            "configs": [_row_to_json(row) for row in self.rows],
        }


def _row_to_json(row: Row) -> dict[str, Any]:
    """A row as plain data; its runs without the config, which is the row's but for the seed."""
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    del values["speed_ups"], values["metrics"]
    for name, mean in {"speed_up": row.speed_up, **row.metrics}.items():
        values[name] = None if mean is None else mean._asdict()
    values["config"] = row.finished[0]["config"] if row.finished else None
    values["runs"] = [
        {"seed": seed, "finished": run is not None, "speed_up": row.speed_ups.get(seed)}
        | {key: value for key, value in (run or {}).items() if key != "config"}
        for seed, run in row.runs.items()
    ]
    return values


def make_comparison(
    recipes: Sequence[Arm],
    seeds: Sequence[int],
    results: Mapping[tuple[str, int], Result],
    command: str,
) -> Comparison:
    """Summarise the results there are; `command` is what reproduces them."""
    metrics = metric_names(recipes[0].recipe)
    runs = {r.name: {seed: results.get((r.name, seed)) for seed in seeds} for r in recipes}
    reference = runs[recipes[0].name]
    rows = tuple(_make_row(arm, runs[arm.name], reference, metrics) for arm in recipes)
    return Comparison(rows, metrics, command)


def _make_row(
    arm: Arm,
    runs: Mapping[int, Result | None],
    reference: Mapping[int, Result | None],
    metrics: Sequence[str],
) -> Row:
    done = [run for run in runs.values() if run is not None]
    both = {seed: (first, run) for seed, run in runs.items() if run and (first := reference[seed])}
    return Row(
        name=arm.name,
        cfg_file=str(arm.cfg_file),
        overrides=arm.overrides,
        iterations=_mean(run["iterations"] for run in done),
        epochs=_mean(run["epochs"] for run in done),
        clips=_mean(run["clips"] for run in done),
        flops=_mean(run["flops"] for run in done),
        seconds=_mean(working_seconds(run) for run in done),
        evaluating=_mean(run["seconds"]["evaluating"] for run in done),
        speed_ups={seed: working_seconds(a) / working_seconds(b) for seed, (a, b) in both.items()},
        iteration_factor=_mean(a["iterations"] / b["iterations"] for a, b in both.values()),
        metrics={name: mean_of(run[name] for run in done) for name in metrics},
        runs=runs,
    )


def _mean(values: Iterable[float]) -> float | None:
    mean = mean_of(values)
    return None if mean is None else mean.mean


def _distinct(rows: Iterable[Row], key: str) -> list[dict[str, Any]]:
    """The different values of a key over all finished runs, in the order of appearance."""
    values: list[dict[str, Any]] = []
    for run in (run for row in rows for run in row.finished):
        if run[key] not in values:
            values.append(run[key])
    return values


def format_comparison(comparison: Comparison, *, markdown: bool = False) -> str:
    """The table of a comparison and what was set in every config, for a terminal or in Markdown."""
    headers = ["config", "seeds", "iterations", "iteration\nfactor", "epochs", "clips"]
    headers += ["training\nFLOPs", "training +\nloading", "evalu-\nation", "speed-up"]
    headers += [f"{metric_title(name)}, %" for name in comparison.metrics]
    if markdown:
        headers = [header.replace("-\n", "").replace("\n", " ") for header in headers]
    rows = [_cells(row, is_first=row is comparison.rows[0]) for row in comparison.rows]
    table = format_table(headers, rows, markdown=markdown)
    return f"{table}\n\nIn every config: {comparison.settings}" if comparison.settings else table


def _cells(row: Row, *, is_first: bool) -> list[str]:
    done, wanted = len(row.finished), len(row.runs)
    seeds = str(wanted) if done == wanted else f"{done} ({wanted - done} {_MISSING})"

    def show(value: float | None, write: Callable[[float], str]) -> str:
        return _MISSING if value is None else write(value)

    return [
        row.name,
        seeds,
        show(row.iterations, format_count),
        show(row.iteration_factor, "{:.2f}×".format),
        show(row.epochs, "{:.1f}".format),
        show(row.clips, format_count),
        show(row.flops, format_flops),
        show(row.seconds, format_duration),
        show(row.evaluating, format_duration),
        _MISSING if row.speed_up is None else "1×" if is_first else f"{row.speed_up.format(2)}×",
        *(mean.format() if mean else _MISSING for mean in row.metrics.values()),
    ]


def write_comparison(comparison: Comparison, output: Path) -> None:
    """Write report.md, report.json and report.png into `output`."""
    output.mkdir(parents=True, exist_ok=True)
    content = json.dumps(comparison.to_json(), indent=2, ensure_ascii=False)
    (output / "report.json").write_text(content + "\n", encoding="utf-8")
    _plot(comparison, output / "report.png")
    (output / "report.md").write_text(_markdown(comparison), encoding="utf-8")


def _markdown(comparison: Comparison) -> str:
    first, metric = comparison.rows[0].name, _LONG_TITLES[comparison.metrics[0]]
    machines = [_describe(machine) for machine in _distinct(comparison.rows, "machine")]
    versions = [_describe(found) for found in _distinct(comparison.rows, "versions")]
    parts = [
        "# Comparison",
        format_comparison(comparison, markdown=True),
        *_findings(comparison),
        f"![{metric.capitalize()} against training time](report.png)",
        f"Speed-up and iteration factor are relative to {first}. The speed-up is the mean over "
        "seeds of the ratio of wall-clock times, of training with loading, without evaluation. ± "
        "is the sample standard deviation over seeds. FLOPs are those of forward and backward.",
        f"Machine: {' | '.join(machines) or _MISSING}",
        f"Versions: {' | '.join(versions) or _MISSING}",
    ]
    if len(machines) > 1:
        parts.append("The runs are of different machines: their times do not compare.")
    parts.append(f"To reproduce:\n\n    {comparison.command}")
    return "\n\n".join(parts) + "\n"


def _findings(comparison: Comparison) -> list[str]:
    """One sentence for each arm but the first, of those that have finished runs."""
    first, *others = comparison.rows
    metric, lines = comparison.metrics[0], []
    for row in others:
        ours, theirs = row.metrics[metric], first.metrics[metric]
        if row.speed_up and ours and theirs:
            lines.append(
                f"- {row.name}: {1 / row.speed_up.mean:.0%} of the time of {first.name}, "
                f"{metric_title(metric)} {ours.mean - theirs.mean:+.1f} points."
            )
    return ["\n".join(lines)] if lines else []


def _describe(values: Mapping[str, Any]) -> str:
    shown = {
        key: ", ".join(map(str, value)) if isinstance(value, list) else value
        for key, value in values.items()
    }
    return ", ".join(f"{key} {value}" for key, value in shown.items() if value not in ("", None))


def _plot(comparison: Comparison, path: Path) -> None:
    """The primary metric against training time, as in the paper's Figure 1."""
    figure, [axes] = new_figure(rows=1, width=8, height=5)
    runs = [run for row in comparison.rows for run in row.finished]
    unit, size = time_unit(max((working_seconds(run) for run in runs), default=0.0))
    for number, row in enumerate(comparison.rows):
        if row.finished:
            _draw_row(axes, row, comparison.metrics[0], COLOURS[number % len(COLOURS)], size)
    axes.set_xlabel(f"training time, loading included ({unit})")
    axes.set_ylabel(f"{_LONG_TITLES[comparison.metrics[0]]} (%)")
    axes.set_xlim(left=0)
    axes.set_title(comparison.settings)
    if runs:
        add_legend(figure, axes, "lines: validation, ●: final result")
    save_figure(figure, path)


def _draw_row(axes: Axes, row: Row, metric: str, colour: str, size: float) -> None:
    """A arm: a thin line for each seed, a thick one for their mean, a dot where they end."""
    mean = row.metrics[metric]
    assert row.seconds is not None, "drawn only with a finished run"
    assert mean is not None, "drawn only with a finished run"
    curves = [
        np.array([(point["seconds"] / size, point[metric]) for point in run["evaluations"]])
        for run in row.finished
    ]
    together = len({curve.shape for curve in curves}) == 1
    several = together and len(curves) > 1
    for curve in curves:
        axes.plot(*curve.T, color=colour, lw=0.8 if several else 2, alpha=0.35 if several else 1)
    if several:
        axes.plot(*np.mean(curves, axis=0).T, color=colour, lw=2.2)
    label = f"{row.name}: {mean.format()} %"
    if row.speed_up and f"{row.speed_up.mean:.2f}" != "1.00":
        label += f", {row.speed_up.mean:.1f}× the speed"
    axes.errorbar(
        row.seconds / size,
        mean.mean,
        yerr=mean.std,
        fmt="o",
        ms=8,
        capsize=4,
        color=colour,
        mec="white",
        label=label,
        zorder=4,
    )
