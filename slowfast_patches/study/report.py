"""Reports of studies: tables, means over seeds, and the files that a report is written to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from slowfast_patches.config.metrics import metric_title
from slowfast_patches.config.yaml_text import parse_yaml
from slowfast_patches.study.arms import Arm
from slowfast_patches.utils.tables import (
    Mean,
    format_count,
    format_duration,
    format_flops,
    format_table,
    mean_of,
)

MISSING = "missing"
"""Table cell of a run that has not finished."""

COLUMNS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "iterations": ("iterations", format_count),
    "iteration_factor": ("iteration\nfactor", "{:.2f}×".format),
    "epochs": ("epochs", "{:.1f}".format),
    "clips": ("clips", format_count),
    "flops": ("training\nFLOPs", format_flops),
    "seconds": ("wall-clock,\ntraining", format_duration),
    "total": ("wall-clock,\nwith evaluation", format_duration),
    "clock": ("steps\nalone", format_duration),
}
"""Columns of `Study.runs` that tables show: the header and the number format of each."""


@dataclass(frozen=True)
class Table:
    """Table of text cells.

    Attributes:
        headers: one for each column. Line breaks are kept on a terminal only.
        rows: the cells, row by row.
        left: number of leading columns that are aligned to the left.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1


@dataclass(frozen=True)
class Report:
    """Result of a study, for people and for programs.

    Attributes:
        name: file name of the report, without a suffix.
        title: heading of the Markdown file.
        summary: paragraphs for the terminal. Empty ones are skipped.
        body: paragraphs of the Markdown file. Empty ones are skipped.
        command: command line that reproduces the report.
        data: content of the JSON file.
        draw: function that draws the picture into a file, or None for a report without a picture.
    """

    name: str
    title: str
    summary: Sequence[str | Table]
    body: Sequence[str | Table]
    command: str
    data: Mapping[str, Any]
    draw: Callable[[Path], None] | None = None

    def __str__(self) -> str:
        return _format(self.summary, markdown=False)

    def write(self, folder: Path) -> None:
        """Write NAME.md, NAME.json and, for a report with a picture, NAME.png."""
        folder.mkdir(parents=True, exist_ok=True)
        content = json.dumps(self.data, indent=2, ensure_ascii=False)
        (folder / f"{self.name}.json").write_text(content + "\n", encoding="utf-8")
        paragraphs = [f"# {self.title}", *self.body, f"To reproduce:\n\n    {self.command}"]
        text = _format(paragraphs, markdown=True)
        (folder / f"{self.name}.md").write_text(text + "\n", encoding="utf-8")
        if self.draw is not None:
            self.draw(folder / f"{self.name}.png")


def _format(paragraphs: Iterable[str | Table], *, markdown: bool) -> str:
    texts = [
        format_table(part.headers, part.rows, markdown=markdown, left=part.left)
        if isinstance(part, Table)
        else part
        for part in paragraphs
    ]
    return "\n\n".join(filter(None, texts))


def mean(runs: pd.DataFrame, arm: str, column: str) -> Mean | None:
    """Return the mean over seeds of a column, or None if the arm has no finished run."""
    return mean_of(map(float, runs.loc[runs["arm"] == arm, column].dropna()))


def format_mean(value: Mean | None, digits: int = 1, unit: str = "") -> str:
    """Format a mean as `76.4 ± 0.2`, and None as "missing"."""
    return MISSING if value is None else f"{value.format(digits)}{unit}"


def title_of(metrics: Iterable[str]) -> str:
    """Return the titles of metrics as a list in words: "top-1 and top-5"."""
    return " and ".join(map(metric_title, metrics))


def arm_json(arm: Arm, runs: pd.DataFrame, metrics: Sequence[str]) -> dict[str, Any]:
    """Return an arm and its finished runs as plain data.

    The config of a run is left out, because it differs from the arm's in the seed only.

    Args:
        arm: the arm.
        runs: table of `Study.runs`.
        metrics: names of the metrics to include.

    Returns:
        A dictionary for JSON. Means are dictionaries of `mean` and `std`, or None without a run.
    """
    means = {name: mean(runs, arm.name, name) for name in (*COLUMNS, "speed_up", *metrics)}
    ratios = runs["speed_up"].astype(object).where(runs["speed_up"].notna(), None)
    finished = zip(runs["arm"], runs["seed"], ratios, runs["result"], strict=True)
    return {
        "name": arm.name,
        "label": arm.label,
        "length": arm.length,
        "cfg_file": str(arm.cfg_file),
        "overrides": arm.overrides,
        **{name: value and value._asdict() for name, value in means.items()},
        "config": parse_yaml(arm.recipe.text),
        "runs": [
            {"seed": seed, "speed_up": ratio} | {k: v for k, v in run.items() if k != "config"}
            for name, seed, ratio, run in finished
            if name == arm.name
        ],
    }


def provenance(runs: pd.DataFrame) -> list[str]:
    """Return two paragraphs: the machines of some runs, and their package versions."""
    return [
        f"Machines: {' | '.join(runs['machine'].unique()) or MISSING}",
        f"Versions: {' | '.join(runs['versions'].unique()) or MISSING}",
    ]


def machine_warnings(runs: pd.DataFrame) -> list[str]:
    """Return a list with a warning if the runs come from different machines, else an empty list."""
    if runs["machine"].nunique() < 2:
        return []
    return ["The runs come from different machines. Their times are not comparable."]
