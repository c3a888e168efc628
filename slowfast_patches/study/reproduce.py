"""Reproduce the paper's tables and figures: estimate the costs of runs, and report the results.

Each report shows the measured numbers next to the published numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multigrid import Cost
from multigrid.cost import FlopsPerClip
from slowfast_patches.config.load import recipe_path
from slowfast_patches.config.metrics import metric_names, metric_title
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.dataset_lists import load_with_classes, read_list
from slowfast_patches.plan.flops import flops_per_clip
from slowfast_patches.plan.step_times import UNTIMED, MisfitError, estimated_timing
from slowfast_patches.study.arms import Arm, Timings, cost_of, measured_times
from slowfast_patches.study.curves import curves_of, draw_panels, make_curve
from slowfast_patches.study.paper import EXPERIMENTS, SCRATCH, Experiment, Row
from slowfast_patches.study.report import (
    COLUMNS,
    MISSING,
    Report,
    Results,
    Table,
    run_warnings,
    title_of,
)
from slowfast_patches.study.runs import mean
from slowfast_patches.utils.tables import format_duration, format_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def experiments_of(names: Iterable[str], own: Sequence[Path]) -> dict[str, Experiment]:
    """Return experiments with the user's recipes as additional rows.

    Args:
        names: Keys of `EXPERIMENTS`.
        own: Config files of the user's recipes. They are compared with the baseline of the first
            row.

    Returns:
        Maps the names to the experiments.

    Raises:
        ValueError: A recipe and an experiment have different metrics.
    """
    experiments = {name: EXPERIMENTS[name] for name in names}
    for path in map(recipe_path, own):
        metrics = metric_names(load_with_classes(path))
        for name, experiment in experiments.items():
            if metrics != tuple(experiment.metrics):
                raise ValueError(
                    f"The metrics of {path} are {title_of(metrics)}, but the metrics of {name} are "
                    f"{title_of(experiment.metrics)}. Add the recipe to a table of the same data "
                    "set."
                )
            first = experiment.rows[0].reference
            file = str(path.resolve())
            row = Row(path.stem, file, first.recipe, first.start, curve=path.stem)
            experiments[name] = replace(experiment, rows=(*experiment.rows, row))
    return experiments


def costs_of(
    arms: Mapping[str, Arm], step_times: Sequence[Path], step_seconds: float | None
) -> dict[str, Cost]:
    """Return the cost of one run of each arm.

    Args:
        arms: Maps names to arms.
        step_times: Files with measured step times. If none of them matches a recipe, the time in
            its cost is None.
        step_seconds: Time per iteration of the first arm at the baseline's shape, in seconds. If
            given, `step_times` is ignored, and the step times of all recipes are estimated from
            this value. The estimate assumes that each process computes the same number of FLOPs per
            second.

    Returns:
        Maps the names of the arms to the costs.
    """
    timings = measured_times(step_times)
    if step_seconds is not None:
        timings = _estimated(next(iter(arms.values())).recipe, step_seconds)
    costs = dict[str, Cost]()
    for name, arm in arms.items():
        try:
            costs[name] = cost_of(arm, timings)
        except MisfitError as error:
            print(f"There are no step times for {arm.cfg_file.name}: {error}\n")
            costs[name] = cost_of(arm, lambda *_: UNTIMED)
    return costs


def _estimated(first: Recipe, seconds: float) -> Timings:
    """Return step times in proportion to FLOPs.

    Args:
        first: Recipe whose step time is known.
        seconds: Seconds per iteration of this recipe at the baseline's shape.
    """

    def work(recipe: Recipe, flops: FlopsPerClip) -> float:
        base = recipe.base_shape
        return base.batch * flops(base.frames, base.crop) / recipe.world_size

    rate = seconds / work(first, flops_per_clip(first))
    return lambda recipe, flops: estimated_timing(recipe, rate * work(recipe, flops), flops)


def plan_json(
    experiment: Experiment, arms: Mapping[str, Arm], costs: Mapping[str, Cost], seeds: Sequence[int]
) -> dict[str, Any]:
    """Return the planned runs of an experiment and their costs as JSON-compatible data."""
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
    """Format the result of `plan_json` as a table."""
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
    """Check that the list files and weights of some rows exist and that the lists can be read.

    Raises:
        ValueError: A file is missing or unreadable. If an option was not given, the message names
            the option.
    """
    lists = dict[tuple[str, str, str], Recipe]()
    for row in rows:
        recipe = arms[row.folder].recipe
        weights = recipe.train.checkpoint_file_path
        dataset = recipe.train.dataset
        if row.start != SCRATCH and not weights:
            raise ValueError(
                f"{row.folder} is initialized from a {row.start} checkpoint. Give "
                f"--{row.start}-weights FILE."
            )
        if weights and not Path(weights).is_file():
            raise ValueError(
                f"{row.folder} is initialized from {weights}, but there is no such file."
            )
        if not recipe.data.path_to_data_dir:
            raise ValueError(f"{row.folder} needs the data set {dataset}. Give --{dataset} DIR.")
        lists[dataset, recipe.data.path_to_data_dir, recipe.data.path_prefix] = recipe
    for recipe in lists.values():
        for split in ("train", "val", "test"):
            read_list(recipe, split)


@dataclass(frozen=True)
class PaperTable(Results):
    """Experiment and its finished runs.

    Attributes:
        name: Key of the experiment in `EXPERIMENTS`.
        experiment: Rows of the table, with the published numbers.
    """

    name: str
    experiment: Experiment

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the published metrics."""
        return tuple(self.experiment.metrics)

    @cached_property
    def arms(self) -> dict[str, Arm]:
        """Maps `Row.folder` to the arm."""
        return {arm.name: arm for arm in self.study.arms}

    def iterations(self, row: Row) -> int:
        """Return the iterations of a row's runs, or the planned number if no run has finished."""
        trained = mean(self.runs, row.folder, "iterations")
        return round(trained.mean) if trained else self.arms[row.folder].iterations

    def to_json(self) -> dict[str, Any]:
        """Return the table as JSON-compatible data. Missing values are None."""
        rows = list[dict[str, Any]]()
        for row in self.experiment.rows:
            published = {name: value._asdict() for name, value in row.metrics.items()}
            measured = self.arm_json(self.arms[row.folder], self.metrics)
            rows.append(
                {
                    "label": row.label,
                    "curve": row.curve,
                    "iterations": self.iterations(row),
                    "published": {**published, "speed_up": row.speed_up, "source": row.source},
                    "measured": None if row.published_only else measured,
                }
            )
        return {
            "experiment": self.name,
            "title": self.experiment.title,
            "note": self.experiment.note,
            "command": self.command,
            "seeds": self.study.seeds,
            "published_runs": self.experiment.published_runs,
            "rows": rows,
        }


def paper_report(table: PaperTable) -> Report:
    """Return the report of an experiment. Figures of the paper also get a picture."""
    experiment = table.experiment
    runs = f", {experiment.published_runs} runs" if experiment.published_runs > 1 else ""
    headers = ["", "iterations"]
    for name in table.metrics:
        headers += [f"{metric_title(name)}, %\n{whose}" for whose in ("published", "measured")]
    headers += ["speed-up\npublished", "speed-up\nmeasured", "runs"]
    notes = (
        f"Published: {experiment.published}{runs}. "
        "Measured: mean over seeds ± sample standard deviation. The measured speed-up is the "
        "wall-clock training time of the baseline divided by the wall-clock training time of the "
        "run with the same seed. Training times include data loading but not evaluation. "
        f"“{MISSING}”: no finished run yet. “–”: not published, or not trained."
    )
    return Report(
        name=table.name,
        title=experiment.title,
        results=table,
        tables=[Table(headers, [_cells(table, row) for row in experiment.rows])],
        result=run_warnings(table.runs),
        notes=[notes, experiment.note],
        picture=experiment.title,
        draw=partial(_draw, table) if table.name.startswith("figure") else None,
    )


def _cells(table: PaperTable, row: Row) -> list[str]:
    """Return the table cells of a row.

    Published numbers have as many decimals as in the paper: one for a mean, and two for a standard
    deviation.
    """
    arm = table.arms[row.folder]

    def measured(name: str) -> str:
        return "–" if row.published_only else table.cell(arm, name)

    cells = [row.label, f"{table.iterations(row):,}"]
    for name in table.metrics:
        theirs = row.metrics.get(name)
        cells += [theirs.format(1, 2) if theirs else "–", measured(name)]
    published = "–" if row.speed_up is None else f"{row.speed_up:.1f}×"
    finished = f"{(table.runs['arm'] == arm.name).sum()} of {len(table.study.seeds)}"
    if row.published_only:
        return [*cells, published, "–", "–"]
    is_baseline = arm.name == arm.baseline
    return [*cells, "1×" if is_baseline else published, measured("speed_up"), finished]


def _draw(table: PaperTable, path: Path) -> None:
    """Draw top-1 accuracy against the training time relative to the baseline.

    Hollow points are published numbers.

    Args:
        table: Results for a figure of the paper.
        path: File to save the picture to.
    """
    rows = {row.folder: row for row in table.experiment.rows}
    runs = table.runs[table.runs["arm"].isin(list(rows))]
    whole = table.arms[table.experiment.rows[0].reference.folder].schedule.epochs
    runs = runs.assign(
        label=[rows[name].curve for name in runs["arm"]],
        length=[table.arms[name].schedule.epochs / whole for name in runs["arm"]],
        clock=1 / runs["speed_up"],
    )
    curves = {row.curve: make_curve([], [], [], []) for row in rows.values()}

    def add_published(axes: Axes, colours: Mapping[str, str]) -> None:
        for row in rows.values():
            if "top1" in row.metrics:
                point = (1 / (row.speed_up or 1.0), row.metrics["top1"].mean)
                axes.plot(*point, "o", mew=1.8, zorder=5, mfc="none", mec=colours[row.curve], ms=10)

    explained = "●: measured, mean ± standard deviation over n seeds; ○: published"
    time = "training time relative to the baseline (including data loading)"
    draw_panels(
        path,
        {time: curves | curves_of(runs, "seconds", "top1")},
        runs.groupby("label")["seed"].nunique().to_dict(),
        (table.experiment.title, "top-1 accuracy (%)", explained),
        add_published,
        logarithmic=True,
    )
