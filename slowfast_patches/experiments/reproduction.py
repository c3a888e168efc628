"""Reproduce the paper's tables and figures: estimate the costs of runs, and report the results.

Each report shows the measured numbers next to the published numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from multigrid import Cost, schedule_cost
from multigrid.cost import FlopsPerClip
from slowfast_patches.config.metrics import metric_names, metric_title
from slowfast_patches.experiments.curves import curves_of, draw_curves
from slowfast_patches.experiments.paper import SCRATCH, PaperTable, Row
from slowfast_patches.experiments.report import (
    COLUMNS,
    MISSING,
    Report,
    Table,
    count_cell,
    experiment_warnings,
    format_cell,
    origin,
    variant_json,
)
from slowfast_patches.experiments.runs import Experiment
from slowfast_patches.experiments.variants import Variant, hidden_files
from slowfast_patches.plan.flops import flops_per_clip
from slowfast_patches.plan.recipe_times import UNTIMED, measured_times
from slowfast_patches.plan.step_times import MisfitError
from slowfast_patches.utils.errors import UserError
from slowfast_patches.utils.pictures import COLOURS, add_legend, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_HOLLOW: dict[str, Any] = {"marker": "o", "mfc": "none", "ms": 10, "ls": ""}
_TITLE: dict[str, Any] = {"fontsize": 11}


def costs_of(variants: Mapping[str, Variant], step_times: Sequence[Path]) -> dict[str, Cost]:
    """Return the cost of one run of each variant.

    Args:
        variants: Maps names to variants.
        step_times: Files with measured step times. If none of them matches a recipe, the time in
            its cost is None.

    Returns:
        Maps the names of the variants to the costs.
    """
    counts = dict[str, FlopsPerClip]()
    costs = dict[str, Cost]()
    for name, variant in variants.items():
        recipe = variant.recipe
        # Variants of the same model share the FLOPs, which take a second to count.
        model = repr([recipe.model, recipe.resnet, recipe.slowfast, recipe.nonlocal_])
        if model not in counts:
            counts[model] = flops_per_clip(recipe)
        times = UNTIMED
        try:
            times = measured_times(step_times, recipe) if step_times else UNTIMED
        except MisfitError as error:
            print(f"There are no step times for {variant.cfg_file.name}: {error}\n")
        costs[name] = schedule_cost(variant.schedule, counts[model], times.ours)
    return costs


def check_inputs(rows: Collection[Row], variants: Mapping[str, Variant]) -> None:
    """Check that the list files and weights of some rows exist and that the lists can be read.

    Raises:
        ValueError: A file is missing or unreadable.
    """
    for row in rows:
        recipe = variants[row.folder].recipe
        if row.start != SCRATCH and not recipe.train.checkpoint_file_path:
            raise UserError(f"{row.folder} needs weights. Give --{row.start}-weights FILE.")
        if hidden := hidden_files(recipe):
            raise UserError(f"{row.folder} needs {hidden[0]}, which does not exist.")


def report_table(
    name: str,
    table: PaperTable,
    experiment: Experiment,
    runs: pd.DataFrame,
    costs: Mapping[str, Cost],
    command: str,
) -> Report:
    """Return a report that compares runs with a table or figure of the paper.

    Args:
        name: Key of the table in `PAPER_TABLES`.
        table: Rows of the table, with the published numbers.
        experiment: Variants of all tables, and seeds.
        runs: Table returned by `Experiment.runs`.
        costs: Maps the names of the variants to their planned costs.
        command: Command line that reproduces the report.
    """
    variants = {variant.name: variant for variant in experiment.variants}
    source = table.published
    if table.published_runs > 1:
        source += f", {table.published_runs} runs"
    return Report(
        name=name,
        title=table.title,
        result=experiment_warnings(experiment, runs),
        tables=[_table(table, experiment, variants, runs, costs)],
        notes=[
            f"Published: {source}. Measured: mean over seeds ± sample standard deviation. The "
            "measured speed-up is the wall-clock training time of the baseline divided by the "
            "wall-clock training time of the run with the same seed. Training times include data "
            f"loading but not evaluation. “{MISSING}”: no finished run yet. “–”: not published, or "
            "not trained.",
            *[table.note] * bool(table.note),
            *origin(runs, command),
        ],
        content={
            "table": name,
            "title": table.title,
            "note": table.note,
            "command": command,
            "seeds": experiment.seeds,
            "published_runs": table.published_runs,
            "rows": [_row_json(row, variants[row.folder], runs) for row in table.rows],
        },
        figure=_figure(table, runs) if name.startswith("figure") else None,
    )


def _row_json(row: Row, variant: Variant, runs: pd.DataFrame) -> dict[str, Any]:
    published = {name: value._asdict() for name, value in row.metrics.items()}
    measured = variant_json(variant, runs, metric_names(variant.recipe))
    return {
        "label": row.label,
        "curve": row.curve,
        "iterations": variant.iterations,
        "published": {**published, "speed_up": row.speed_up, "source": row.source},
        "measured": None if row.published_only else measured,
    }


def _table(
    table: PaperTable,
    experiment: Experiment,
    variants: Mapping[str, Variant],
    runs: pd.DataFrame,
    costs: Mapping[str, Cost],
) -> Table:
    """Return a table of planned costs, and of published and measured numbers.

    Published numbers have as many decimals as in the paper: one for a mean, and two for a
    standard deviation.
    """
    planned = ("iterations", "epochs", "flops", "seconds")
    titles = [*(f"{metric_title(name)}, %" for name in table.metrics), "speed-up"]
    headers = [f"{title}\n{whose}" for title in titles for whose in ("published", "measured")]
    headers = ["", "config", *planned[:2], "FLOPs", "steps\nalone", *headers, "runs"]
    rows = list[list[str]]()
    for row in table.rows:
        variant = variants[row.folder]
        cells = [row.label, "/".join(variant.cfg_file.parts[-2:])]
        for name in planned:
            value = getattr(costs[variant.name], name)
            cells.append("?" if value is None else COLUMNS[name][1](value))
        published = {name: value.format(1, 2) for name, value in row.metrics.items()}
        if row.speed_up:
            published["speed_up"] = f"{row.speed_up:.1f}×"
        for name in (*table.metrics, "speed_up"):
            measured = "–" if row.published_only else format_cell(runs, variant, name)
            cells += [published.get(name, "–"), measured]
        rows.append([*cells, "–" if row.published_only else count_cell(experiment, runs, variant)])
    return Table(headers, rows)


def _figure(table: PaperTable, runs: pd.DataFrame) -> Figure:
    """Draw top-1 accuracy against the training time relative to the baseline.

    Hollow points are published numbers.
    """
    runs = runs[runs["variant"].isin([row.folder for row in table.rows])]
    curves = dict.fromkeys(row.curve for row in table.rows)
    colours = dict(zip(curves, cycle(COLOURS), strict=False))
    figure, [axes] = new_figure(rows=1, width=8, height=5)
    figure.suptitle(table.title, **_TITLE)
    axes.set_xlabel("training time relative to the baseline (including data loading)")
    axes.set_ylabel("top-1 accuracy (%)")
    measured = curves_of(runs.assign(time=1 / runs["speed_up"]), "time", "top1")
    draw_curves(axes, measured, colours, runs)
    for row in table.rows:
        if "top1" in row.metrics:
            point = (1 / (row.speed_up or 1.0), row.metrics["top1"].mean)
            name = f"{row.curve}, published"
            axes.plot(*point, mec=colours[row.curve], label=name, **_HOLLOW)
    add_legend(figure, axes, "mean ± standard deviation over n seeds", 2)
    return figure
