"""Reproduce the paper's tables and figures: estimate the costs of runs, and report the results.

Each report shows the measured numbers next to the published numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multigrid import Cost, schedule_cost
from multigrid.cost import FlopsPerClip, iteration_flops
from slowfast_patches.config.load import recipe_path
from slowfast_patches.config.metrics import metric_names, metric_title
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.dataset_lists import load_with_classes, read_list
from slowfast_patches.plan.flops import flops_per_clip
from slowfast_patches.plan.step_time_file import MisfitError
from slowfast_patches.plan.step_times import UNTIMED, estimated_timing, measured_timing
from slowfast_patches.study.arms import Arm
from slowfast_patches.study.curves import curves_of, draw_panels, make_curve
from slowfast_patches.study.paper import EXPERIMENTS, SCRATCH, Experiment, Row
from slowfast_patches.study.report import COLUMNS, MISSING, Report, Table, title_of
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
    counts = dict[str, FlopsPerClip]()
    work = list[float]()
    costs = dict[str, Cost]()
    for name, arm in arms.items():
        recipe = arm.recipe
        model = repr([recipe.model, recipe.resnet, recipe.slowfast, recipe.nonlocal_, recipe.hf])
        kind = f"{model} {recipe.data.num_frames} {recipe.data.crop_size}"
        flops = counts[kind] = counts.get(kind) or flops_per_clip(recipe)
        timing = UNTIMED
        if step_seconds is not None:
            work.append(
                iteration_flops(recipe.base_shape, flops) / recipe.world_size
            )  # of a process
            timing = estimated_timing(recipe, step_seconds * work[-1] / work[0], flops)
        elif step_times:
            try:
                timing = measured_timing(step_times, recipe)
            except MisfitError as error:
                print(f"There are no step times for {arm.cfg_file.name}: {error}\n")
        costs[name] = schedule_cost(arm.schedule, flops, timing.ours)
    return costs


def format_costs(
    experiment: Experiment, arms: Mapping[str, Arm], costs: Mapping[str, Cost], seeds: int
) -> str:
    """Format the planned runs of an experiment and their costs as a table."""
    columns = ("iterations", "epochs", "clips", "flops")
    headers = ["run", "config", "seeds", *(COLUMNS[name][0] for name in columns)]
    headers += ["ratio to\nthe baseline", "time of\na run"]
    cells = list[list[str]]()
    for row in experiment.rows:
        if not row.published_only:
            cost = costs[row.folder]
            ratio = costs[row.reference.folder].iterations / cost.iterations
            config = "/".join(arms[row.folder].cfg_file.parts[-2:])
            totals = [COLUMNS[name][1](getattr(cost, name)) for name in columns]
            time = "?" if cost.seconds is None else format_duration(cost.seconds)
            cells.append([row.label, config, str(seeds), *totals, f"1/{ratio:.2f}", time])
    return f"{experiment.title}\n\n{format_table(headers, cells, left=2)}\n"


def check_inputs(rows: Collection[Row], arms: Mapping[str, Arm]) -> None:
    """Check that the list files and weights of some rows exist and that the lists can be read.

    Raises:
        ValueError: A file is missing or unreadable. If an option was not given, the message names
            the option.
    """
    lists = dict[tuple[str, str], Recipe]()
    for row in rows:
        recipe = arms[row.folder].recipe
        weights = recipe.train.checkpoint_file_path
        if row.start != SCRATCH and not Path(weights).is_file():
            raise ValueError(
                f"{row.folder} is initialized from a {row.start} checkpoint, but there is no file "
                f"'{weights}'. Give --{row.start}-weights FILE."
            )
        data = recipe.data
        if not data.path_to_data_dir:
            name = recipe.train.dataset
            raise ValueError(f"{row.folder} needs the data set {name}. Give --{name} DIR.")
        lists[data.path_to_data_dir, data.path_prefix] = recipe
    for recipe in lists.values():
        for split in ("train", "val", "test"):
            read_list(recipe, split)


@dataclass(frozen=True)
class PaperTable(Report):
    """Report that compares runs with a table of the paper.

    Attributes:
        key: Key of the experiment in `EXPERIMENTS`.
        experiment: Rows of the table, with the published numbers.
    """

    key: str
    experiment: Experiment

    @property
    def name(self) -> str:
        return self.key

    @property
    def title(self) -> str:
        return self.experiment.title

    @property
    def picture(self) -> str:
        return self.title if self.key.startswith("figure") else ""

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
            measured = self.arm_json(self.arms[row.folder])
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
            "experiment": self.key,
            "title": self.title,
            "note": self.experiment.note,
            "command": self.command,
            "seeds": self.study.seeds,
            "published_runs": self.experiment.published_runs,
            "rows": rows,
        }

    def tables(self) -> list[str | Table]:
        headers = ["", "iterations"]
        for name in self.metrics:
            headers += [f"{metric_title(name)}, %\n{whose}" for whose in ("published", "measured")]
        headers += ["speed-up\npublished", "speed-up\nmeasured", "runs"]
        return [Table(headers, list(map(self._cells, self.experiment.rows)))]

    def _cells(self, row: Row) -> list[str]:
        """Return the table cells of a row.

        Published numbers have as many decimals as in the paper: one for a mean, and two for a
        standard deviation.
        """
        arm = self.arms[row.folder]
        names = (*self.metrics, "speed_up")
        published = [
            theirs.format(1, 2) if theirs else "–" for theirs in map(row.metrics.get, self.metrics)
        ]
        published.append("–" if row.speed_up is None else f"{row.speed_up:.1f}×")
        measured = ["–" if row.published_only else self.cell(arm, name) for name in names]
        finished = f"{(self.runs['arm'] == arm.name).sum()} of {len(self.study.seeds)}"
        if row.published_only:
            finished = "–"
        elif arm.name == arm.baseline:
            published[-1] = "1×"
        pairs = [cell for pair in zip(published, measured, strict=True) for cell in pair]
        return [row.label, f"{self.iterations(row):,}", *pairs, finished]

    def notes(self) -> list[str]:
        experiment = self.experiment
        runs = f", {experiment.published_runs} runs" if experiment.published_runs > 1 else ""
        return [
            f"Published: {experiment.published}{runs}. Measured: mean over seeds ± sample standard "
            "deviation. The measured speed-up is the wall-clock training time of the baseline "
            "divided by the wall-clock training time of the run with the same seed. Training times "
            f"include data loading but not evaluation. “{MISSING}”: no finished run yet. “–”: not "
            "published, or not trained.",
            experiment.note,
        ]

    def draw(self, path: Path) -> None:
        """Draw top-1 accuracy against the training time relative to the baseline.

        Hollow points are published numbers.
        """
        rows = {row.folder: row for row in self.experiment.rows}
        runs = self.runs[self.runs["arm"].isin(list(rows))]
        whole = self.arms[self.experiment.rows[0].reference.folder].schedule.epochs
        runs = runs.assign(
            label=[rows[name].curve for name in runs["arm"]],
            length=[self.arms[name].schedule.epochs / whole for name in runs["arm"]],
            clock=1 / runs["speed_up"],
        )
        curves = {row.curve: make_curve([], [], [], []) for row in rows.values()}

        def add_published(axes: Axes, colours: Mapping[str, str]) -> None:
            for row in rows.values():
                if "top1" in row.metrics:
                    point = (1 / (row.speed_up or 1.0), row.metrics["top1"].mean)
                    style: dict[str, Any] = {"mew": 1.8, "zorder": 5, "mfc": "none", "ms": 10}
                    axes.plot(*point, "o", mec=colours[row.curve], **style)

        explained = "●: measured, mean ± standard deviation over n seeds; ○: published"
        time = "training time relative to the baseline (including data loading)"
        draw_panels(
            path,
            {time: curves | curves_of(runs, "seconds", "top1")},
            runs.groupby("label")["seed"].nunique().to_dict(),
            (self.title, "top-1 accuracy (%)", explained),
            add_published,
            logarithmic=True,
        )
