"""Reports of studies: build tables of runs, and write Markdown, JSON and picture files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from slowfast_patches.config.metrics import metric_names, metric_title
from slowfast_patches.config.yaml_text import parse_yaml
from slowfast_patches.plan.identity import STUDY, differences_between
from slowfast_patches.study.arms import Arm
from slowfast_patches.study.runs import Study, mean
from slowfast_patches.study.score import chance_of
from slowfast_patches.utils.clock import format_duration
from slowfast_patches.utils.files import make_folder, write_text
from slowfast_patches.utils.pictures import save_figure
from slowfast_patches.utils.tables import (
    format_count,
    format_flops,
    format_table,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    "speed_up": ("speed-up", "{:.2f}×".format),
}
"""Maps each column of `Study.runs` that tables show to its header and number format. The columns of
metrics are not included. They are shown with their standard deviations."""


class Table(NamedTuple):
    """Table of text cells. Line breaks in headers only appear on a terminal, not in Markdown."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Report:
    """Report of a study as text, Markdown, JSON and a picture.

    The Markdown file starts with the result. On a terminal, the result comes last, so that it stays
    visible.

    Attributes:
        name: File name of the report, without a suffix.
        title: Heading of the Markdown file.
        result: Warnings and the verdict.
        tables: Tables, and paragraphs that explain them.
        notes: Explanations that only the Markdown file has.
        content: Content of the JSON file.
        figure: The picture, or None for a report without a picture.
    """

    name: str
    title: str
    result: Sequence[str]
    tables: Sequence[str | Table]
    notes: Sequence[str]
    content: Mapping[str, Any]
    figure: Figure | None = None

    def __str__(self) -> str:
        return _format([*self.tables, *self.result], markdown=False)

    def write(self, folder: Path) -> None:
        """Write NAME.md, NAME.json and, if the report has a picture, NAME.png to a folder."""
        make_folder(folder, "--output")
        content = json.dumps(self.content, indent=2, ensure_ascii=False)
        write_text(folder / f"{self.name}.json", content + "\n")
        top = [f"# {self.title}", *self.result]
        if self.figure is not None:
            save_figure(self.figure, folder / f"{self.name}.png")
            top.append(f"![{self.title}]({self.name}.png)")
        text = _format([*top, *self.tables, *self.notes], markdown=True)
        write_text(folder / f"{self.name}.md", text + "\n")


def _format(paragraphs: Iterable[str | Table], *, markdown: bool) -> str:
    return "\n\n".join(
        part if isinstance(part, str) else format_table(*part, markdown=markdown)
        for part in paragraphs
    )


def format_cell(runs: pd.DataFrame, arm: Arm, name: str) -> str:
    """Format the mean of a column over the runs of an arm, or return `MISSING` without runs."""
    found = mean(runs, arm.name, name)
    if found is None:
        return MISSING
    return COLUMNS[name][1](found.mean) if name in COLUMNS else found.format()


def count_cell(study: Study, runs: pd.DataFrame, arm: Arm) -> str:
    """Return how many runs of an arm have finished or failed, such as `2 of 3, 1 failed`."""
    failed = sum(name == arm.name for name, _ in study.failed())
    count = f"{(runs['arm'] == arm.name).sum()} of {len(study.seeds)}"
    return f"{count}, {failed} failed" if failed else count


def arms_table(study: Study, runs: pd.DataFrame, columns: Sequence[str]) -> Table:
    """Return a table with one row per arm and the means of some columns of `Study.runs`."""
    headers = [COLUMNS[n][0] if n in COLUMNS else f"{metric_title(n)}, %" for n in columns]
    rows = [
        [arm.name, count_cell(study, runs, arm), *(format_cell(runs, arm, n) for n in columns)]
        for arm in study.arms
    ]
    rows += [[name, "not trained", *[MISSING] * len(columns)] for name in study.dropped]
    return Table(["config", "seeds", *headers], rows)


def arm_json(arm: Arm, runs: pd.DataFrame, metrics: Iterable[str]) -> dict[str, Any]:
    """Return an arm and its finished runs as JSON-compatible data.

    The configs of the runs are omitted, because they only differ from the arm's config in the
    seed. Each mean over seeds is a dictionary of `mean` and `std`, or None if no run has
    finished.
    """
    means = {name: mean(runs, arm.name, name) for name in (*COLUMNS, *metrics)}
    results = runs.loc[runs["arm"] == arm.name, "result"]
    return {
        "name": arm.name,
        "label": arm.label,
        "cfg_file": str(arm.cfg_file),
        "overrides": arm.overrides,
        **{name: value and value._asdict() for name, value in means.items()},
        "length": arm.length,
        "config": parse_yaml(arm.recipe.text),
        "runs": [{k: v for k, v in run.items() if k != "config"} for run in results],
    }


def study_json(study: Study, runs: pd.DataFrame, command: str) -> dict[str, Any]:
    """Return the runs of all arms as JSON-compatible data.

    Args:
        study: Arms and seeds.
        runs: Table returned by `Study.runs`.
        command: Command line that reproduces the report.
    """
    recipe = study.arms[0].recipe
    metrics = metric_names(recipe)
    return {
        "command": command,
        "metric": metrics[0],
        "seeds": study.seeds,
        "chance": chance_of(recipe),
        "configs": [arm_json(arm, runs, metrics) for arm in study.arms],
        "differences": arm_differences(study),
        "failed": [[*run, reason] for run, reason in study.failed().items()],
        "not_trained": dict(study.dropped),
    }


def arm_differences(study: Study) -> dict[str, list[str]]:
    """Describe what differs between each arm and its baseline, by the name of the arm."""
    arms = {arm.name: arm for arm in study.arms}
    found = {
        arm.name: differences_between(arms[arm.baseline].identity, arm.identity, STUDY)
        for arm in study.arms
        if arms.get(arm.baseline, arm) is not arm
    }
    return {name: list(texts.values()) for name, texts in found.items()}


def explain_differences(study: Study) -> list[str]:
    """Return a paragraph for each arm that says what differs from its baseline (there)."""
    return [
        f"{name} differs from its baseline in: {'; '.join(texts) or 'nothing'}."
        for name, texts in arm_differences(study).items()
    ]


def study_warnings(study: Study, runs: pd.DataFrame) -> list[str]:
    """Return warnings about runs that failed, lists that overlap, machines and versions."""
    overlaps = dict.fromkeys(text for run in runs["result"] for text in run.get("overlaps", ()))
    texts = [
        f"Lists have videos in common, so the accuracy may be too high: {text}."
        for text in overlaps
    ]
    texts += [f"{name} was not trained: {reason}." for name, reason in study.dropped.items()]
    texts += [
        f"The run of {name} with seed {seed} failed: {reason}. To try it again, repeat the command."
        for (name, seed), reason in study.failed().items()
    ]
    planned = {arm.name: arm.iterations for arm in study.arms}
    texts += [
        f"{run.arm}, seed {run.seed}, was trained for {run.iterations:,} iterations, but "
        f"{planned[run.arm]:,} are planned here, without its list of videos."
        for run in runs.itertuples()
        if run.result.get("planned_iterations", run.iterations) != planned[run.arm]
    ]
    if runs["machine"].nunique() > 1:
        texts.append(
            "The runs come from different machines, so the times of the runs are not comparable."
        )
    if runs["versions"].nunique() > 1:
        texts.append("The runs come from different versions of packages.")
    several = [
        f"{run.arm}, seed {run.seed}" for run in runs.itertuples() if math.isnan(run.seconds)
    ]
    if several:
        texts.append(
            f"Runs that were resumed on another machine or with other settings have no times: "
            f"{'; '.join(several)}."
        )
    return texts


def origin(runs: pd.DataFrame, command: str) -> list[str]:
    """Return paragraphs that name the machine, the versions and the command of a study."""
    where = [
        f"{name.capitalize()}: {' | '.join(runs[name].unique()) or MISSING}"
        for name in ("machine", "versions")
    ]
    return [*where, f"To reproduce:\n\n    {command}"]
