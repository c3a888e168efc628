"""Reports of experiments: build tables of runs, and write Markdown, JSON and picture files."""

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
from slowfast_patches.experiments.runs import Experiment, mean
from slowfast_patches.experiments.score import chance_of
from slowfast_patches.experiments.variants import Variant
from slowfast_patches.plan.run_identity import EXPERIMENT, differences_between
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
"""Maps each column of `Experiment.runs` that tables show to its header and number format. The
columns of metrics are not included. They are shown with their standard deviations."""


class Table(NamedTuple):
    """Table of text cells. Line breaks in headers only appear on a terminal, not in Markdown."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Report:
    """Report of an experiment as text, Markdown, JSON and a picture.

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


def format_cell(runs: pd.DataFrame, variant: Variant, name: str) -> str:
    """Format the mean of a column over the runs of a variant, or return `MISSING` without runs."""
    found = mean(runs, variant.name, name)
    if found is None:
        return MISSING
    return COLUMNS[name][1](found.mean) if name in COLUMNS else found.format()


def count_cell(experiment: Experiment, runs: pd.DataFrame, variant: Variant) -> str:
    """Return how many runs of a variant have finished or failed, such as `2 of 3, 1 failed`."""
    failed = sum(name == variant.name for name, _ in experiment.failed())
    count = f"{(runs['variant'] == variant.name).sum()} of {len(experiment.seeds)}"
    return f"{count}, {failed} failed" if failed else count


def variants_table(experiment: Experiment, runs: pd.DataFrame, columns: Sequence[str]) -> Table:
    """Return a table with a row for each variant: the means of columns of `Experiment.runs`."""
    headers = [COLUMNS[n][0] if n in COLUMNS else f"{metric_title(n)}, %" for n in columns]
    rows = [
        [
            variant.name,
            count_cell(experiment, runs, variant),
            *(format_cell(runs, variant, n) for n in columns),
        ]
        for variant in experiment.variants
    ]
    rows += [[name, "not trained", *[MISSING] * len(columns)] for name in experiment.dropped]
    return Table(["config", "seeds", *headers], rows)


def variant_json(variant: Variant, runs: pd.DataFrame, metrics: Iterable[str]) -> dict[str, Any]:
    """Return a variant and its finished runs as JSON-compatible data.

    The configs of the runs are omitted, because they only differ from the variant's config in the
    seed. Each mean over seeds is a dictionary of `mean` and `std`, or None if no run has
    finished.
    """
    means = {name: mean(runs, variant.name, name) for name in (*COLUMNS, *metrics)}
    results = runs.loc[runs["variant"] == variant.name, "result"]
    return {
        "name": variant.name,
        "label": variant.label,
        "cfg_file": str(variant.cfg_file),
        "overrides": variant.overrides,
        **{name: value and value._asdict() for name, value in means.items()},
        "length": variant.length,
        "config": parse_yaml(variant.recipe.text),
        "runs": [{k: v for k, v in run.items() if k != "config"} for run in results],
    }


def experiment_json(experiment: Experiment, runs: pd.DataFrame, command: str) -> dict[str, Any]:
    """Return the runs of all variants as JSON-compatible data.

    Args:
        experiment: Variants and seeds.
        runs: Table returned by `Experiment.runs`.
        command: Command line that reproduces the report.
    """
    recipe = experiment.variants[0].recipe
    metrics = metric_names(recipe)
    return {
        "command": command,
        "metric": metrics[0],
        "seeds": experiment.seeds,
        "chance": chance_of(recipe),
        "configs": [variant_json(variant, runs, metrics) for variant in experiment.variants],
        "differences": variant_differences(experiment),
        "failed": [[*run, reason] for run, reason in experiment.failed().items()],
        "not_trained": dict(experiment.dropped),
    }


def variant_differences(experiment: Experiment) -> dict[str, list[str]]:
    """Describe the differences between each variant and its baseline, by the variant's name."""
    variants = {variant.name: variant for variant in experiment.variants}
    found = {
        variant.name: differences_between(
            variants[variant.baseline].identity, variant.identity, EXPERIMENT
        )
        for variant in experiment.variants
        if variants.get(variant.baseline, variant) is not variant
    }
    return {name: list(texts.values()) for name, texts in found.items()}


def explain_differences(experiment: Experiment) -> list[str]:
    """Return a paragraph for each variant that lists its differences from the baseline."""
    return [
        f"{name} differs from its baseline in: {'; '.join(texts) or 'nothing'}."
        for name, texts in variant_differences(experiment).items()
    ]


def experiment_warnings(experiment: Experiment, runs: pd.DataFrame) -> list[str]:
    """Return warnings about runs that failed, lists that overlap, machines and versions."""
    overlaps = dict.fromkeys(text for run in runs["result"] for text in run.get("overlaps", ()))
    texts = [
        f"Lists have videos in common, so the accuracy may be too high: {text}."
        for text in overlaps
    ]
    texts += [f"{name} was not trained: {reason}." for name, reason in experiment.dropped.items()]
    texts += [
        f"The run of {name} with seed {seed} failed: {reason}. To try it again, repeat the command."
        for (name, seed), reason in experiment.failed().items()
    ]
    planned = {variant.name: variant.iterations for variant in experiment.variants}
    texts += [
        f"{run.variant}, seed {run.seed}, was trained for {run.iterations:,} iterations, but "
        f"{planned[run.variant]:,} are planned here, without its list of videos."
        for run in runs.itertuples()
        if run.result.get("planned_iterations", run.iterations) != planned[run.variant]
    ]
    if runs["machine"].nunique() > 1:
        texts.append(
            "The runs come from different machines, so the times of the runs are not comparable."
        )
    if runs["versions"].nunique() > 1:
        texts.append("The runs come from different versions of packages.")
    several = [
        f"{run.variant}, seed {run.seed}" for run in runs.itertuples() if math.isnan(run.seconds)
    ]
    if several:
        texts.append(
            f"Runs that were resumed on another machine or with other settings have no times: "
            f"{'; '.join(several)}."
        )
    return texts


def origin(runs: pd.DataFrame, command: str) -> list[str]:
    """Return paragraphs that name the machine, the versions and the command of an experiment."""
    where = [
        f"{name.capitalize()}: {' | '.join(runs[name].unique()) or MISSING}"
        for name in ("machine", "versions")
    ]
    return [*where, f"To reproduce:\n\n    {command}"]
