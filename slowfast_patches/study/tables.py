"""A table or figure of the paper: what its runs would cost, and what they gave beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slowfast_patches.config.metrics import metric_title
from slowfast_patches.study.experiments import Experiment, Row
from slowfast_patches.study.pictures import Point, plot_curves
from slowfast_patches.study.report import MISSING, Measured, as_json, provenance, write_report
from slowfast_patches.study.runs import working_seconds
from slowfast_patches.utils.tables import (
    format_count,
    format_duration,
    format_flops,
    format_table,
)

__all__ = ["TOY_MARK", "Outcome", "format_costs", "format_outcome", "write_outcome"]

TOY_MARK = (
    "TOY SIZE: a test of the path on rendered videos; no number here is the paper's experiment."
)


def format_costs(title: str, rows: Sequence[Mapping[str, Any]], seeds: int) -> str:
    """What the runs of an experiment take, for a terminal: a table of plain data."""
    headers = ["run", "config", "seeds", "iterations", "epochs", "clips", "training\nFLOPs"]
    headers += ["ratio to\nthe baseline", "time of\na run"]
    cells = [
        [
            row["run"],
            row["config"],
            str(seeds),
            format_count(row["iterations"]),
            f"{row['epochs']:.1f}",
            format_count(row["clips"]),
            format_flops(row["flops"]),
            f"1/{row['factor']:.2f}",
            "?" if row["seconds"] is None else format_duration(row["seconds"]),
        ]
        for row in rows
    ]
    return f"{title}\n\n{format_table(headers, cells, left=2)}"


@dataclass(frozen=True)
class Outcome:
    """An experiment with what was measured of each of its rows; `command` is what asked for it."""

    experiment: Experiment
    rows: tuple[tuple[Row, Measured], ...]
    seeds: tuple[int, ...]
    toy: bool
    command: str

    @property
    def ours(self) -> str:
        """What its own numbers are called."""
        return "toy" if self.toy else "measured"

    def to_json(self) -> dict[str, Any]:
        """As plain data; a mean has its `mean` and `std`, what is missing is null."""
        return {
            "experiment": self.experiment.name,
            "title": self.experiment.title,
            "scale": "toy" if self.toy else "paper",
            "note": TOY_MARK if self.toy else self.experiment.note,
            "command": self.command,
            "seeds": self.seeds,
            "published_runs": self.experiment.published_runs,
            "rows": [self._row_json(row, measured) for row, measured in self.rows],
        }

    def _row_json(self, row: Row, measured: Measured) -> dict[str, Any]:
        names = self.experiment.metrics
        published = {name: as_json(row.metrics.get(name)) for name in names}
        return {
            "label": row.label,
            "curve": row.curve,
            "config": measured.arm.config,
            "overrides": measured.arm.overrides,
            "iterations": _iterations(measured),
            "published": {**published, "speed_up": row.speed_up, "source": row.source},
            "measured": {
                **{name: as_json(measured.metric(name)) for name in names},
                "speed_up": as_json(measured.speed_up),
                "hours": as_json(measured.mean(lambda run: working_seconds(run) / 3600)),
            },
            "finished_seeds": list(measured.runs),
            "machines": measured.machines,
        }


def format_outcome(outcome: Outcome, *, markdown: bool = False) -> str:
    """The table of an experiment, published beside measured, for a terminal or in Markdown."""
    headers, ours = ["", "iterations"], outcome.ours
    for name in outcome.experiment.metrics:
        title = metric_title(name)
        headers += [f"{title}, %\npublished", f"{title}, %\n{ours}"]
    headers += ["speed-up\npublished", f"speed-up\n{ours}", "runs"]
    if markdown:
        headers = [header.replace("\n", " ") for header in headers]
    rows = [_cells(outcome, row, measured) for row, measured in outcome.rows]
    return format_table(headers, rows, markdown=markdown)


def _cells(outcome: Outcome, row: Row, measured: Measured) -> list[str]:
    cells = [row.label, f"{_iterations(measured):,}"]
    for name in outcome.experiment.metrics:
        theirs, ours = row.metrics.get(name), measured.metric(name)
        # As many decimals as the paper prints: two where it gives a standard deviation.
        cells += [theirs.format(1 if theirs.std is None else 2) if theirs else "–"]
        cells += [ours.format() if ours else MISSING]
    published = "–" if row.speed_up is None else f"{row.speed_up:.2g}×"
    found = MISSING if measured.speed_up is None else f"{measured.speed_up.format(2)}×"
    if row.training.baseline is None:
        published, found = "1×", "1×" if measured.speed_up else MISSING
    return [*cells, published, found, f"{len(measured.runs)} of {len(outcome.seeds)}"]


def _iterations(measured: Measured) -> int:
    """Those of the runs, of the plan before the first."""
    runs = measured.runs.values()
    return max((run["iterations"] for run in runs), default=measured.arm.iterations)


def write_outcome(outcome: Outcome, folder: Path) -> None:
    """Write NAME.md, NAME.json and, for figures, NAME.png into a folder."""
    experiment, runs = outcome.experiment, outcome.experiment.published_runs
    paragraphs = [
        f"# {experiment.title}",
        *([f"**{TOY_MARK}**"] if outcome.toy else []),
        format_outcome(outcome, markdown=True),
        *([f"![{experiment.title}]({experiment.name}.png)"] if experiment.is_figure else []),
        f"Published: Wu et al., CVPR 2020, on P100 GPUs{f', {runs} runs' if runs > 1 else ''}. "
        "Measured: means over seeds, ± the sample standard deviation; the speed-up is the ratio of "
        "wall-clock times to the baseline's of the same seed, loading included, evaluation left "
        f"out. “{MISSING}”: no finished run yet; “–”: not in the paper's tables.",
        *([experiment.note] if experiment.note else []),
        *provenance([measured for _, measured in outcome.rows], outcome.command),
    ]
    write_report(folder, experiment.name, outcome.to_json(), paragraphs)
    if experiment.is_figure:
        title = experiment.title + (f"\n{TOY_MARK}" if outcome.toy else "")
        plot_curves(list(_points(outcome)), title, outcome.ours, folder / f"{experiment.name}.png")


def _points(outcome: Outcome) -> Iterator[Point]:
    for row, measured in outcome.rows:
        top1 = row.metrics.get("top1")
        yield row.curve, measured, (1 / (row.speed_up or 1.0), top1.mean) if top1 else None
