"""A table or figure of the paper: what its runs would cost, and what they gave beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from slowfast_patches.config.metrics import metric_title
from slowfast_patches.study.arms import Arm
from slowfast_patches.study.curves import make_curve
from slowfast_patches.study.experiments import Experiment, PaperRow, PaperTraining
from slowfast_patches.study.pictures import plot_figure
from slowfast_patches.study.report import (
    MISSING,
    as_json,
    format_mean,
    mean_over_seeds,
    provenance,
    write_report,
)
from slowfast_patches.utils.tables import (
    Mean,
    format_count,
    format_duration,
    format_flops,
    format_table,
)

__all__ = ["TOY_MARK", "PaperTable", "format_costs", "format_paper_table", "write_paper_table"]

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
class PaperTable:
    """An experiment with the `runs_table` of its trainings; `command` is what asked for it."""

    experiment: Experiment
    arms: Mapping[PaperTraining, Arm]
    runs: pd.DataFrame
    seeds: tuple[int, ...]
    toy: bool
    command: str

    @property
    def measured(self) -> str:
        """What its own numbers are called."""
        return "toy" if self.toy else "measured"

    def runs_of(self, row: PaperRow) -> pd.DataFrame:
        """The finished runs of a row."""
        name = None if row.published_only else self.arms[row.training].name
        return self.runs[self.runs["arm"] == name]

    def mean(self, row: PaperRow, column: str) -> Mean | None:
        """Of a column of the runs of a row, over the seeds."""
        return mean_over_seeds(self.runs_of(row), self.arms[row.training].name, column)

    def iterations(self, row: PaperRow) -> int:
        """Those of the runs, of the plan before the first."""
        runs = self.runs_of(row)
        return int(runs["iterations"].max() if len(runs) else self.arms[row.training].iterations)

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
            "rows": [self._row_json(row) for row in self.experiment.rows],
        }

    def _row_json(self, row: PaperRow) -> dict[str, Any]:
        names = self.experiment.metrics
        arm = self.arms[row.training]
        runs = self.runs_of(row)
        published = {name: as_json(row.metrics.get(name)) for name in names}
        columns = (*names, "speed_up", "seconds")
        return {
            "label": row.label,
            "curve": row.curve,
            "config": arm.config,
            "overrides": arm.overrides,
            "iterations": self.iterations(row),
            "published": {**published, "speed_up": row.speed_up, "source": row.source},
            "measured": {name: as_json(self.mean(row, name)) for name in columns},
            "finished_seeds": runs["seed"].tolist(),
            "machines": runs["machine"].unique().tolist(),
        }


def format_paper_table(table: PaperTable, *, markdown: bool = False) -> str:
    """The table of an experiment, published beside measured, for a terminal or in Markdown."""
    headers = ["", "iterations"]
    for name in table.experiment.metrics:
        title = metric_title(name)
        headers += [f"{title}, %\npublished", f"{title}, %\n{table.measured}"]
    headers += ["speed-up\npublished", f"speed-up\n{table.measured}", "runs"]
    rows = [_cells(table, row) for row in table.experiment.rows]
    return format_table(headers, rows, markdown=markdown)


def _cells(table: PaperTable, row: PaperRow) -> list[str]:
    """Published numbers have the paper's decimals: one of a mean, two of a standard deviation."""
    cells = [row.label, f"{table.iterations(row):,}"]
    metrics = [(row.metrics.get(name), table.mean(row, name)) for name in table.experiment.metrics]
    published = "–" if row.speed_up is None else f"{row.speed_up:.1f}×"
    speed_up = format_mean(table.mean(row, "speed_up"), 2, "×")
    runs = f"{len(table.runs_of(row))} of {len(table.seeds)}"
    if row.training.baseline is None and not row.published_only:
        published = "1×"
        speed_up = "1×" if len(table.runs_of(row)) else MISSING
    for theirs, ours in metrics:
        cells += [theirs.format(1, 2) if theirs else "–", format_mean(ours)]
    cells += [published, speed_up, runs]
    if row.published_only:
        cells[-1] = "–"
        return ["–" if cell == MISSING else cell for cell in cells]
    return cells


def write_paper_table(table: PaperTable, folder: Path) -> None:
    """Write NAME.md, NAME.json and, for figures, NAME.png into a folder."""
    experiment = table.experiment
    runs = f", {experiment.published_runs} runs" if experiment.published_runs > 1 else ""
    paragraphs = [
        f"# {experiment.title}",
        f"**{TOY_MARK}**" if table.toy else "",
        format_paper_table(table, markdown=True),
        f"![{experiment.title}]({experiment.name}.png)" if experiment.is_figure else "",
        f"Published: {experiment.published}{runs}. "
        "Measured: means over seeds, ± the sample standard deviation; the speed-up is the ratio of "
        "wall-clock times to the baseline's of the same seed, loading included, evaluation left "
        f"out. “{MISSING}”: no finished run yet; “–”: not printed there, or nothing to train.",
        experiment.note,
        *provenance(table.runs, table.command),
    ]
    write_report(folder, experiment.name, table.to_json(), filter(None, paragraphs))
    if experiment.is_figure:
        _plot(table, folder / f"{experiment.name}.png")


def _plot(table: PaperTable, path: Path) -> None:
    """Accuracy over the time relative to the baseline's, a curve for each of the figure's."""
    curves = dict[str, pd.DataFrame]()
    published = dict[str, list[tuple[float, float]]]()
    for label in dict.fromkeys(row.curve for row in table.experiment.rows):
        rows = [row for row in table.experiment.rows if row.curve == label]
        points = list[tuple[float, float, float | None]]()
        for row in rows:
            speed_up = table.mean(row, "speed_up")
            top1 = table.mean(row, "top1")
            if speed_up and top1:
                points.append((1 / speed_up.mean, top1.mean, top1.std))
        curves[label] = make_curve(np.nan, *np.array(points, float).reshape(-1, 3).T)
        published[label] = [
            (1 / (row.speed_up or 1.0), row.metrics["top1"].mean)
            for row in rows
            if "top1" in row.metrics
        ]
    title = table.experiment.title + (f"\n{TOY_MARK}" if table.toy else "")
    plot_figure(curves, published, title, table.measured, path)
