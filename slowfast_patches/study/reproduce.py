"""The tables and figures of the paper: what their runs cost, and what they gave beside the
published numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from multigrid import Cost
from multigrid.cost import FlopsPerClip
from slowfast_patches.config import load_recipe
from slowfast_patches.config.metrics import metric_names, metric_title
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.dataset_lists import read_list
from slowfast_patches.launch.launch import processes_of
from slowfast_patches.models.flops import flops_per_clip
from slowfast_patches.plan.step_times import UNTIMED, MisfitError, estimated_timing
from slowfast_patches.study.arms import Arm, Timings, cost_of, measured_times
from slowfast_patches.study.curves import curves_of, draw_curves, make_curve, set_log_axis
from slowfast_patches.study.paper import EXPERIMENTS, SCRATCH, Experiment, Row
from slowfast_patches.study.report import (
    COLUMNS,
    MISSING,
    arm_json,
    format_mean,
    machine_warnings,
    mean,
    provenance,
    title_of,
    write_report,
)
from slowfast_patches.utils.pictures import COLOURS, add_legend, new_figure, save_figure
from slowfast_patches.utils.tables import (
    Mean,
    format_duration,
    format_table,
)

__all__ = [
    "PaperTable",
    "check_inputs",
    "costs_of",
    "experiments_of",
    "format_costs",
    "format_paper_table",
    "plan_json",
    "write_paper_table",
]


def experiments_of(names: Iterable[str], own: Sequence[Path]) -> dict[str, Experiment]:
    """Experiments by name, with a user's recipes as further rows, compared with the first baseline.

    Raises:
        ValueError: a recipe is judged by other metrics.
    """
    experiments = {name: EXPERIMENTS[name] for name in names}
    for path in own:
        metrics = metric_names(load_recipe(path))
        for name, experiment in experiments.items():
            if metrics != tuple(experiment.metrics):
                raise ValueError(
                    f"{path} is judged by {title_of(metrics)}, {name} by "
                    f"{title_of(experiment.metrics)}; add it to a table of its own data set"
                )
            first = experiment.rows[0].reference
            file = str(path.resolve())
            row = Row(path.stem, file, first.recipe, first.start, curve=path.stem)
            experiments[name] = replace(experiment, rows=(*experiment.rows, row))
    return experiments


def costs_of(
    arms: Mapping[str, Arm], step_times: Sequence[Path], step_seconds: float | None
) -> dict[str, Cost]:
    """What a run of each arm takes; without seconds where no step times hold for its recipe.

    `step_seconds` are those of the first arm at its baseline's shape: a process does as many FLOPs
    a second everywhere.
    """
    timings = measured_times(step_times)
    if step_seconds is not None:
        timings = _estimated(next(iter(arms.values())).recipe, step_seconds)
    costs = dict[str, Cost]()
    for name, arm in arms.items():
        try:
            costs[name] = cost_of(arm, timings)
        except MisfitError as error:
            print(f"no times for {arm.cfg_file.name}: {error}\n")
            costs[name] = cost_of(arm, lambda *_: UNTIMED)
    return costs


def _estimated(first: Recipe, seconds: float) -> Timings:
    def work(recipe: Recipe, flops: FlopsPerClip) -> float:
        base = recipe.base_shape
        return base.batch * flops(base.frames, base.crop) / processes_of(recipe)

    rate = seconds / work(first, flops_per_clip(first))
    return lambda recipe, flops: estimated_timing(recipe, rate * work(recipe, flops), flops)


def plan_json(
    experiment: Experiment, arms: Mapping[str, Arm], costs: Mapping[str, Cost], seeds: Sequence[int]
) -> dict[str, Any]:
    """What would be trained for an experiment, as plain data."""
    rows = [row for row in experiment.rows if not row.published_only]
    return {
        "title": experiment.title,
        "seeds": seeds,
        "rows": [
            {
                "run": row.label,
                "config": "/".join(arms[row.folder].cfg_file.parts[-2:]),
                **asdict(costs[row.folder]),
                "factor": costs[row.reference.folder].iterations / costs[row.folder].iterations,
            }
            for row in rows
        ],
    }


def format_costs(plan: Mapping[str, Any]) -> str:
    """A `plan_json` for a terminal."""
    columns = ("iterations", "epochs", "clips", "flops")
    headers = ["run", "config", "seeds", *(COLUMNS[name][0] for name in columns)]
    headers += ["ratio to\nthe baseline", "time of\na run"]
    cells = [
        [
            row["run"],
            row["config"],
            str(len(plan["seeds"])),
            *(COLUMNS[name][1](row[name]) for name in columns),
            f"1/{row['factor']:.2f}",
            "?" if row["seconds"] is None else format_duration(row["seconds"]),
        ]
        for row in plan["rows"]
    ]
    return f"{plan['title']}\n\n{format_table(headers, cells, left=2)}\n"


def check_inputs(rows: Collection[Row], arms: Mapping[str, Arm]) -> None:
    """Read the lists and look for the weights that the runs of some rows need.

    Raises:
        ValueError: one is missing; names the option that gives it.
    """
    lists = dict[tuple[str, str, str], Recipe]()
    for row in rows:
        recipe = arms[row.folder].recipe
        weights = recipe.train.checkpoint_file_path
        dataset = recipe.train.dataset
        if row.start != SCRATCH and not weights:
            raise ValueError(
                f"{row.folder} starts from a model of {row.start}: give --{row.start}-weights FILE"
            )
        if weights and not Path(weights).is_file():
            raise ValueError(f"{row.folder} starts from {weights}: no such file")
        if not recipe.data.path_to_data_dir:
            raise ValueError(f"the data set {dataset} is needed: give --{dataset} DIR")
        lists[dataset, recipe.data.path_to_data_dir, recipe.data.path_prefix] = recipe
    for recipe in lists.values():
        for split in ("train", "val", "test"):
            read_list(recipe, split)


@dataclass(frozen=True)
class PaperTable:
    """An experiment with the finished runs of its arms; `command` is what asked for it."""

    name: str
    experiment: Experiment
    arms: Mapping[str, Arm]
    runs: pd.DataFrame
    seeds: Sequence[int]
    command: str

    @property
    def is_figure(self) -> bool:
        return self.name.startswith("figure")

    def mean(self, row: Row, column: str) -> Mean | None:
        """The mean over seeds of a column of the runs of a row."""
        return None if row.published_only else mean(self.runs, row.folder, column)

    def iterations(self, row: Row) -> int:
        """Those of the runs or, before the first, of the plan."""
        trained = mean(self.runs, row.folder, "iterations")
        return round(trained.mean) if trained else self.arms[row.folder].iterations

    def to_json(self) -> dict[str, Any]:
        """The table as plain data; null is what is missing."""
        names = self.experiment.metrics
        rows = list[dict[str, Any]]()
        for row in self.experiment.rows:
            published = {
                **{name: value._asdict() for name, value in row.metrics.items()},
                "speed_up": row.speed_up,
                "source": row.source,
            }
            measured = arm_json(self.arms[row.folder], self.runs, names)
            rows.append(
                {
                    "label": row.label,
                    "curve": row.curve,
                    "iterations": self.iterations(row),
                    "published": published,
                    "measured": None if row.published_only else measured,
                }
            )
        return {
            "experiment": self.name,
            "title": self.experiment.title,
            "note": self.experiment.note,
            "command": self.command,
            "seeds": self.seeds,
            "published_runs": self.experiment.published_runs,
            "rows": rows,
        }


def format_paper_table(table: PaperTable, *, markdown: bool = False) -> str:
    """The table of an experiment, published beside measured, for a terminal or in Markdown."""
    headers = ["", "iterations"]
    for name in table.experiment.metrics:
        title = metric_title(name)
        headers += [f"{title}, %\npublished", f"{title}, %\nmeasured"]
    headers += ["speed-up\npublished", "speed-up\nmeasured", "runs"]
    rows = [_cells(table, row) for row in table.experiment.rows]
    return format_table(headers, rows, markdown=markdown)


def _cells(table: PaperTable, row: Row) -> list[str]:
    """Published numbers have the paper's decimals: one of a mean, two of a standard deviation."""
    finished = int((table.runs["arm"] == row.folder).sum())
    published = "–" if row.speed_up is None else f"{row.speed_up:.1f}×"
    speed_up = format_mean(table.mean(row, "speed_up"), 2, "×")
    if row.folder == row.reference.folder and not row.published_only:
        published = "1×"
        speed_up = "1×" if finished else MISSING
    cells = [row.label, f"{table.iterations(row):,}"]
    for name in table.experiment.metrics:
        theirs = row.metrics.get(name)
        cells += [theirs.format(1, 2) if theirs else "–", format_mean(table.mean(row, name))]
    cells += [published, speed_up, f"{finished} of {len(table.seeds)}"]
    if row.published_only:
        return ["–" if cell == MISSING else cell for cell in cells[:-1]] + ["–"]
    return cells


def write_paper_table(table: PaperTable, folder: Path) -> None:
    """Write NAME.md, NAME.json and, for figures, NAME.png into a folder."""
    experiment = table.experiment
    runs = f", {experiment.published_runs} runs" if experiment.published_runs > 1 else ""
    paragraphs = [
        f"# {experiment.title}",
        format_paper_table(table, markdown=True),
        f"![{experiment.title}]({table.name}.png)" if table.is_figure else "",
        f"Published: {experiment.published}{runs}. "
        "Measured: means over seeds, ± the sample standard deviation; the speed-up is the ratio of "
        "wall-clock times to the baseline's of the same seed, loading included, evaluation left "
        f"out. “{MISSING}”: no finished run yet; “–”: not printed there, or nothing to train.",
        experiment.note,
        *machine_warnings(table.runs),
        *provenance(table.runs, table.command),
    ]
    write_report(folder, table.name, table.to_json(), filter(None, paragraphs))
    if table.is_figure:
        _plot(table, folder / f"{table.name}.png")


def _plot(table: PaperTable, path: Path) -> None:
    """Accuracy over the time relative to the baseline's; published points are hollow."""
    figure, [axes] = new_figure(rows=1, width=8.5, height=5.5)
    rows = {row.folder: row for row in table.experiment.rows}
    runs = table.runs[table.runs["arm"].isin(list(rows))]
    whole = table.arms[table.experiment.rows[0].reference.folder].schedule.epochs
    runs = runs.assign(
        label=runs["arm"].map({name: row.curve for name, row in rows.items()}),
        length=runs["arm"].map({name: table.arms[name].schedule.epochs / whole for name in rows}),
        clock=1 / runs["speed_up"],
    )
    labels = list(dict.fromkeys(row.curve for row in rows.values()))
    curves = curves_of(runs, "seconds", "top1")
    draw_curves(axes, {label: curves.get(label, make_curve([], [], [], [])) for label in labels})
    for row in rows.values():
        if "top1" in row.metrics:
            point = (1 / (row.speed_up or 1.0), row.metrics["top1"].mean)
            colour = COLOURS[labels.index(row.curve) % len(COLOURS)]
            axes.plot(*point, "o", mew=1.8, zorder=5, mfc="none", mec=colour, ms=10)
    set_log_axis(axes, "{:g}".format)
    axes.set_xlabel("training time, relative to the baseline's (loading included)")
    axes.set_ylabel("top-1 accuracy (%)")
    add_legend(figure, axes, "●: measured, ○: published", columns=4)
    axes.set_title(table.experiment.title, fontsize=10)
    save_figure(figure, path)
