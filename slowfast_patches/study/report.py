"""Reports of studies: build tables of runs, and write Markdown, JSON and picture files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from slowfast_patches.config.metrics import metric_names, metric_title
from slowfast_patches.config.yaml_text import parse_yaml
from slowfast_patches.study.arms import Arm
from slowfast_patches.study.runs import Study, mean
from slowfast_patches.study.score import chance_of
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


class Table(NamedTuple):
    """Table of text cells. Line breaks in headers only appear on a terminal, not in Markdown."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Report:
    """Report of a study as text, Markdown and JSON. Each subclass is the report of a program.

    The Markdown file starts with the result. On a terminal, the result comes last, so that it stays
    visible.

    Attributes:
        study: Arms and seeds.
        runs: Table returned by `Study.runs`.
        command: Command line that reproduces the report.
    """

    study: Study
    runs: pd.DataFrame
    command: str

    @property
    def name(self) -> str:
        """File name of the report, without a suffix."""
        raise NotImplementedError

    @property
    def title(self) -> str:
        """Heading of the Markdown file."""
        return self.name.capitalize()

    @property
    def picture(self) -> str:
        """Title of the picture that `draw` saves, or "" for a report without a picture."""
        return ""

    def tables(self) -> list[str | Table]:
        """Return tables, and paragraphs that explain them."""
        raise NotImplementedError

    def result(self) -> list[str]:
        """Return warnings and the verdict."""
        return self.warnings()

    def notes(self) -> list[str]:
        """Return explanations that only the Markdown file has."""
        return []

    def draw(self, path: Path) -> None:
        """Save the picture."""
        raise NotImplementedError

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

    def table(self, columns: Sequence[str]) -> Table:
        """Return a table with one row per arm, and a row with the chance level if it is known.

        Args:
            columns: Names of the columns, including the primary metric.
        """
        headers = ["config", "seeds", *map(_header, columns)]
        rows = list[list[str]]()
        for arm in self.study.arms:
            finished = (self.runs["arm"] == arm.name).sum()
            absent = len(self.study.seeds) - finished
            seeds = f"{finished} ({absent} {MISSING})" if absent else f"{finished}"
            rows.append([arm.name, seeds, *(self.cell(arm, name) for name in columns)])
        if self.chance is not None:
            shown = {self.metrics[0]: f"{self.chance:.1f}"}
            rows.append(["chance", "", *(shown.get(name, "") for name in columns)])
        return Table(headers, rows)

    def arm_json(self, arm: Arm) -> dict[str, Any]:
        """Return an arm and its finished runs as JSON-compatible data.

        The configs of the runs are omitted, because they only differ from the arm's config in the
        seed. Each mean over seeds is a dictionary of `mean` and `std`, or None if no run has
        finished.
        """
        means = {n: mean(self.runs, arm.name, n) for n in (*COLUMNS, "speed_up", *self.metrics)}
        runs = self.runs[self.runs["arm"] == arm.name]
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
            "configs": list(map(self.arm_json, self.study.arms)),
        }

    def warnings(self) -> list[str]:
        """Return warnings about lists that overlap, and about runs from different machines."""
        overlaps = dict.fromkeys(
            text for run in self.runs["result"] for text in run.get("overlaps", ())
        )
        texts = [
            f"Lists have videos in common, so the accuracy may be too high: {text}."
            for text in overlaps
        ]
        if self.runs["machine"].nunique() > 1:
            texts.append(
                "The runs come from different machines, so the times of the runs are not "
                "comparable."
            )
        return texts

    def __str__(self) -> str:
        return _format([*self.tables(), *self.result()], markdown=False)

    def write(self, folder: Path) -> None:
        """Write NAME.md, NAME.json and, if the report has a picture, NAME.png to a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        content = json.dumps(self.to_json(), indent=2, ensure_ascii=False)
        (folder / f"{self.name}.json").write_text(content + "\n", encoding="utf-8")
        paragraphs = [f"# {self.title}", *self.result()]
        if self.picture:
            self.draw(folder / f"{self.name}.png")
            paragraphs.append(f"![{self.picture}]({self.name}.png)")
        where = [
            f"{name.capitalize()}: {' | '.join(self.runs[name].unique()) or MISSING}"
            for name in ("machine", "versions")
        ]
        how = f"To reproduce:\n\n    {self.command}"
        text = _format([*paragraphs, *self.tables(), *self.notes(), *where, how], markdown=True)
        (folder / f"{self.name}.md").write_text(text + "\n", encoding="utf-8")


def _header(column: str) -> str:
    if column == "speed_up":
        return "speed-up"
    return COLUMNS[column][0] if column in COLUMNS else f"{metric_title(column)}, %"


def _format(paragraphs: Iterable[str | Table], *, markdown: bool) -> str:
    return "\n\n".join(
        part if isinstance(part, str) else format_table(*part, markdown=markdown)
        for part in paragraphs
        if part
    )


def title_of(metrics: Iterable[str]) -> str:
    """Join the titles of metrics, for example to "top-1 and top-5"."""
    return " and ".join(map(metric_title, metrics))
