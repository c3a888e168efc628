"""Reports of studies: build tables of runs, and write Markdown, JSON and picture files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from slowfast_patches.config.metrics import metric_names, metric_title
from slowfast_patches.config.yaml_text import parse_yaml
from slowfast_patches.study.arms import Arm
from slowfast_patches.study.runs import Study, mean
from slowfast_patches.study.score import Score, chance_of
from slowfast_patches.utils.tables import (
    format_count,
    format_duration,
    format_flops,
    format_table,
)

MISSING = "missing"
"""Text of a table cell without a finished run."""

COLUMNS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "length": ("length", "{:.3g}×".format),
    "iterations": ("iterations", format_count),
    "iteration_factor": ("iteration\nfactor", "{:.2f}×".format),
    "epochs": ("epochs", "{:.1f}".format),
    "clips": ("clips", format_count),
    "flops": ("training\nFLOPs", format_flops),
    "seconds": ("wall-clock,\ntraining", format_duration),
    "total": ("wall-clock,\nwith evaluation", format_duration),
    "clock": ("steps\nalone", format_duration),
    "loading": ("waiting\nfor data", "{:.0%}".format),
}
"""Maps each column of `Study.runs` that tables show to its header and number format."""


@dataclass(frozen=True)
class Table:
    """Table of text cells.

    Attributes:
        headers: Header of each column. Line breaks only appear on a terminal, not in Markdown.
        rows: Cells of each row.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Results:
    """Study and its finished runs.

    Attributes:
        study: Arms and seeds.
        runs: Table returned by `Study.runs`.
        command: Command line that reproduces the report.
    """

    study: Study
    runs: pd.DataFrame
    command: str

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics, the primary one first."""
        return metric_names(self.study.arms[0].recipe)

    @cached_property
    def chance(self) -> float | None:
        """Accuracy of always predicting the most common class, in per cent.

        None for a recipe with several labels per video.
        """
        return chance_of(self.study.arms[0].recipe)

    def of_arm(self, arm: Arm) -> pd.DataFrame:
        """Return the rows of `runs` of an arm."""
        return self.runs[self.runs["arm"] == arm.name]

    def cell(self, arm: Arm, name: str) -> str:
        """Return the mean of a column over seeds as text, or `MISSING` if no run has finished."""
        found = mean(self.runs, arm.name, name)
        if found is None:
            return MISSING
        if name in COLUMNS:
            return COLUMNS[name][1](found.mean)
        if name == "speed_up":
            return "1×" if arm.name == arm.baseline else f"{found.format(2)}×"
        return found.format()

    def table(self, columns: Sequence[str], scores: Mapping[str, Score] | None = None) -> Table:
        """Return a table with one row per arm.

        If the chance level is known, the last row shows the chance level.

        Args:
            columns: Names of the columns, excluding metrics.
            scores: Maps the name of each arm to the value to show for the primary metric. By
                default, all metrics are averaged over seeds and shown.
        """
        titles = {name: header for name, (header, _) in COLUMNS.items()} | {"speed_up": "speed-up"}
        metrics = self.metrics if scores is None else self.metrics[:1]
        headers = ["config", "seeds", *(titles[name] for name in columns)]
        rows = list[list[str]]()
        for arm in self.study.arms:
            finished = len(self.of_arm(arm))
            absent = len(self.study.seeds) - finished
            cells = [arm.name, f"{finished} ({absent} {MISSING})" if absent else f"{finished}"]
            cells += [self.cell(arm, name) for name in columns]
            accuracies = [self.cell(arm, name) for name in metrics]
            rows.append(cells + (accuracies if scores is None else [scores[arm.name].format()]))
        if self.chance is not None:
            blank = [""] * (len(headers) - 1)
            rows.append(["chance", *blank, f"{self.chance:.1f}", *[""] * (len(metrics) - 1)])
        return Table([*headers, *(f"{metric_title(name)}, %" for name in metrics)], rows)

    def arm_json(self, arm: Arm, metrics: Iterable[str]) -> dict[str, Any]:
        """Return an arm and its finished runs as JSON-compatible data.

        The configs of the runs are omitted, because they only differ from the arm's config in the
        seed. Each mean over seeds is a dictionary of `mean` and `std`, or None if no run has
        finished.
        """
        names = (*COLUMNS, "speed_up", *metrics)
        means = {name: mean(self.runs, arm.name, name) for name in names}
        runs = self.of_arm(arm)
        ratios = runs["speed_up"].astype(object).where(runs["speed_up"].notna(), None)
        return {
            "name": arm.name,
            "label": arm.label,
            "cfg_file": str(arm.cfg_file),
            "overrides": arm.overrides,
            **{name: value and value._asdict() for name, value in means.items()},
            "length": arm.length,
            "config": parse_yaml(arm.recipe.text),
            "runs": [
                {"seed": seed, "speed_up": ratio} | {k: v for k, v in run.items() if k != "config"}
                for seed, ratio, run in zip(runs["seed"], ratios, runs["result"], strict=True)
            ],
        }

    def to_json(self) -> dict[str, Any]:
        """Return the runs of all arms as JSON-compatible data."""
        return {
            "command": self.command,
            "metric": self.metrics[0],
            "seeds": self.study.seeds,
            "chance": self.chance,
            "configs": [self.arm_json(arm, self.metrics) for arm in self.study.arms],
        }


@dataclass(frozen=True)
class Report:
    """Report of a study as text, Markdown and JSON.

    The Markdown file starts with the result. On a terminal, the result comes last, so that it stays
    visible.

    Attributes:
        name: File name of the report, without a suffix.
        title: Heading of the Markdown file.
        results: Study and finished runs, which are written to the JSON file.
        tables: Tables, and paragraphs that explain them. Empty paragraphs are skipped.
        result: Warnings and the verdict.
        notes: Explanations that only the Markdown file has.
        picture: Title of the picture.
        draw: Function that saves the picture to a path, or None for a report without a picture.
    """

    name: str
    title: str
    results: Results
    tables: Sequence[str | Table]
    result: Sequence[str] = ()
    notes: Sequence[str] = ()
    picture: str = ""
    draw: Callable[[Path], None] | None = None

    def __str__(self) -> str:
        return _format([*self.tables, *self.result], markdown=False)

    def write(self, folder: Path) -> None:
        """Write NAME.md, NAME.json and, if the report has a picture, NAME.png to a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        content = json.dumps(self.results.to_json(), indent=2, ensure_ascii=False)
        (folder / f"{self.name}.json").write_text(content + "\n", encoding="utf-8")
        picture = "" if self.draw is None else f"![{self.picture}]({self.name}.png)"
        paragraphs = [f"# {self.title}", *self.result, picture, *self.tables, *self.notes]
        for name in ("machine", "versions"):
            values = " | ".join(self.results.runs[name].unique())
            paragraphs.append(f"{name.capitalize()}: {values or MISSING}")
        paragraphs.append(f"To reproduce:\n\n    {self.results.command}")
        text = _format(paragraphs, markdown=True)
        (folder / f"{self.name}.md").write_text(text + "\n", encoding="utf-8")
        if self.draw is not None:
            self.draw(folder / f"{self.name}.png")


def _format(paragraphs: Iterable[str | Table], *, markdown: bool) -> str:
    texts = [
        format_table(part.headers, part.rows, markdown=markdown)
        if isinstance(part, Table)
        else part
        for part in paragraphs
    ]
    return "\n\n".join(filter(None, texts))


def title_of(metrics: Iterable[str]) -> str:
    """Join the titles of metrics, for example to "top-1 and top-5"."""
    return " and ".join(map(metric_title, metrics))


def run_warnings(runs: pd.DataFrame) -> list[str]:
    """Return warnings about runs whose lists overlap, and about runs from different machines."""
    overlaps = dict.fromkeys(text for run in runs["result"] for text in run.get("overlaps", ()))
    texts = [
        f"Lists have videos in common, so the accuracy may be too high: {text}."
        for text in overlaps
    ]
    if runs["machine"].nunique() > 1:
        texts.append(
            "The runs come from different machines, so the times of the runs are not comparable."
        )
    return texts
