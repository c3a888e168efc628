"""From what a user asks for to the plan, the runs and the tables of the paper's experiments."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from multigrid import Cost
from multigrid.cost import FlopsPerClip
from slowfast_patches import patching
from slowfast_patches.config import load_recipe
from slowfast_patches.config.metrics import metric_names, metric_title
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.dataset_lists import read_list
from slowfast_patches.launch.launch import processes_of
from slowfast_patches.launch.slurm import Slurm
from slowfast_patches.models.flops import flops_per_clip
from slowfast_patches.plan.step_times import MisfitError, estimated_timing
from slowfast_patches.study.arms import Arms, TimingOf, check_study, cost_of, measured_times
from slowfast_patches.study.experiments import (
    EXPERIMENTS,
    SCRATCH,
    Experiment,
    PaperRow,
    PaperTraining,
    trainings_of,
)
from slowfast_patches.study.jobs import submit_all
from slowfast_patches.study.report import runs_table
from slowfast_patches.study.runs import Results, each_seed, find_results, train_all
from slowfast_patches.study.tables import (
    TOY_MARK,
    PaperTable,
    format_costs,
    format_paper_table,
    write_paper_table,
)
from slowfast_patches.study.toy import make_toy_videos
from slowfast_patches.utils.tables import format_duration

__all__ = ["Request", "reproduce"]


@dataclass(frozen=True)
class Request:
    """What a user asks for; the options of multigrid-reproduce.

    `arms` makes the arms with what they are trained on, `own` are recipes to add as rows, `at_once`
    runs train side by side here, `command` is what was typed, to be repeated in the reports.
    """

    names: tuple[str, ...]
    seeds: tuple[int, ...]
    output: Path
    run_net: Path
    arms: Arms
    own: tuple[Path, ...] = ()
    step_times: tuple[Path, ...] = ()
    step_seconds: float | None = None
    dry_run: bool = False
    local: bool = False
    at_once: int = 1
    slurm: Slurm | None = None
    command: tuple[str, ...] = ()

    @property
    def typed(self) -> str:
        """`command`, for a report."""
        return shlex.join(["multigrid-reproduce", *self.command])

    @property
    def is_toy(self) -> bool:
        return self.arms.toy is not None

    @property
    def trains(self) -> bool:
        return not self.dry_run and bool(self.local or self.is_toy or self.slurm)

    @property
    def folder(self) -> Path:
        """Where runs and reports go: toys never to the others'."""
        return self.output / "demo" if self.is_toy else self.output


def reproduce(request: Request) -> list[dict[str, Any]]:
    """Print the plan of a request, run it as asked, then write and print its tables.

    Returns:
        each experiment as plain data: what was measured, or what would run (--dry-run).

    Raises:
        ValueError: something that would keep a run from training, before any has begun.
        RunFailedError: a run failed; those before it are kept.
    """
    patching.apply()
    check_study(request.own, request.arms.overrides)
    reproduction = _Reproduction(request)
    planned = reproduction.print_plan()
    return planned if request.dry_run else reproduction.run()


class _Reproduction:
    """The experiments of a request, with the arms and the costs of their trainings."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.experiments = [_with_own(EXPERIMENTS[name], request.own) for name in request.names]
        trainings = trainings_of(self.experiments)
        self.arms = {training: request.arms.arm(training) for training in trainings}
        self.runs = each_seed(list(self.arms.values()), request.seeds)
        self.costs = self._costs()

    def _costs(self) -> dict[str, Cost]:
        """What a run of each arm takes, by its name; those without step times are named."""
        timing_of = self._timing_of()
        costs = dict[str, Cost]()
        misfits = list[str]()
        for arm in self.arms.values():
            try:
                costs[arm.name] = cost_of(arm, timing_of)
            except MisfitError as error:
                costs[arm.name] = cost_of(arm)
                misfits.append(f"{arm.cfg_file.name}: {error}")
        if misfits:
            print(f"no times for {len(misfits)} recipes, such as {misfits[0]}\n")
        return costs

    def _timing_of(self) -> TimingOf | None:
        """How long iterations take. --step-seconds are those of the first arm at its baseline's
        shape: the FLOPs that a process does in a second are taken to be the same everywhere."""
        seconds = self.request.step_seconds
        if seconds is None:
            return measured_times(self.request.step_times)
        first = next(iter(self.arms.values())).recipe
        rate = seconds / _work(first, flops_per_clip(first))
        return lambda recipe, flops: estimated_timing(recipe, rate * _work(recipe, flops), flops)

    def print_plan(self) -> list[dict[str, Any]]:
        """The runs of each experiment, and what all of them would take; as plain data, too."""
        if self.request.is_toy:
            print(f"{TOY_MARK}\n")
        seeds = self.request.seeds
        planned = list[dict[str, Any]]()
        for experiment in self.experiments:
            rows = [self._planned(row) for row in experiment.rows if not row.published_only]
            print(f"{format_costs(experiment.title, rows, len(seeds))}\n")
            planned.append({"title": experiment.title, "seeds": seeds, "rows": rows})
        seconds = [self.costs[arm.name].seconds for arm, _ in self.runs]
        known = [value for value in seconds if value is not None]
        total = "unknown: give --step-times FILE"
        if len(known) == len(seconds):
            total = format_duration(sum(known))
        print(
            f"{len(self.runs)} runs in all: {len(self.arms)} recipes × {len(seeds)} seed"
            f"{'s' if len(seeds) > 1 else ''}, each recipe counted once; training time, without "
            f"loading and evaluation: {total}",
            flush=True,
        )
        return planned

    def _planned(self, row: PaperRow) -> dict[str, Any]:
        """What a run of a row takes; `factor` is how many times fewer iterations than its
        baseline's it has."""
        arm = self.arms[row.training]
        baseline = self.arms[row.training.baseline or row.training]
        factor = baseline.iterations / arm.iterations
        cost = asdict(self.costs[arm.name])
        return {"run": row.label, "config": arm.config, **cost, "factor": factor}

    def run(self) -> list[dict[str, Any]]:
        """Train as asked, report after each run, and print the tables; as plain data, too."""
        request = self.request
        if request.trains:
            self._prepare()
        if request.local or request.is_toy:
            progress = train_all(
                self.runs,
                request.folder,
                request.run_net,
                lambda arm: self.costs[arm.name],
                request.at_once,
            )
            with closing(progress):
                for results in progress:
                    self._report(results)
        results = find_results(self.runs, request.folder)  # refuses those of other recipes
        if request.slurm is not None:
            jobs = submit_all(self.runs, request.folder, request.run_net, request.slurm)
            numbers = ", ".join(jobs.values()) or "all are done or queued"
            print(f"{len(jobs)} jobs queued: {numbers}")
        tables = self._report(results)
        for table in tables:
            mark = f"{TOY_MARK}\n" if request.is_toy else ""
            print(f"\n{mark}{table.experiment.title}\n\n{format_paper_table(table)}")
        print(f"\nReports: {request.folder}")
        return [table.to_json() for table in tables]

    def _prepare(self) -> None:
        """Check everything that the runs need before the first of them; make it for toys."""
        request = self.request
        if request.is_toy:
            datasets = {arm.recipe.train.dataset.lower() for arm in self.arms.values()}
            make_toy_videos(request.folder / "data", datasets)
        lists = dict[tuple[str, str, str], Recipe]()
        for training, arm in self.arms.items():
            weights = arm.recipe.train.checkpoint_file_path
            data = arm.recipe.data
            dataset = arm.recipe.train.dataset
            if training.start != SCRATCH and not weights and not request.is_toy:
                raise ValueError(
                    f"{arm.name} starts from a model of {training.start}: give "
                    f"--{training.start}-weights FILE"
                )
            if weights and not Path(weights).is_file():
                raise ValueError(f"{arm.name} starts from {weights}: no such file")
            if not data.path_to_data_dir:
                raise ValueError(f"the data set {dataset} is needed: give --{dataset} DIR")
            lists[dataset, data.path_to_data_dir, data.path_prefix] = arm.recipe
        for recipe in lists.values():
            for split in ("train", "val", "test"):
                read_list(recipe, split)

    def _report(self, results: Results) -> list[PaperTable]:
        """Write every experiment's report of the results there are."""
        request = self.request
        baselines = {arm.name: self.arms[t.baseline or t].name for t, arm in self.arms.items()}
        tables = list[PaperTable]()
        for experiment in self.experiments:
            own = [self.arms[training] for training in trainings_of([experiment])]
            runs = runs_table(own, request.seeds, results, experiment.metrics, baselines)
            table = PaperTable(
                experiment, self.arms, runs, request.seeds, request.is_toy, request.typed
            )
            write_paper_table(table, request.folder)
            tables.append(table)
        return tables


def _with_own(experiment: Experiment, own: Sequence[Path]) -> Experiment:
    """An experiment with a user's recipes as further rows, compared with its first baseline.

    Raises:
        ValueError: one that is judged by other metrics.
    """
    first = experiment.rows[0].training
    rows = list(experiment.rows)
    baseline = first.baseline or first
    for path in own:
        metrics = metric_names(load_recipe(path))
        if metrics != experiment.metrics:
            raise ValueError(
                f"{path} is judged by {' and '.join(map(metric_title, metrics))}, "
                f"{experiment.name} by {' and '.join(map(metric_title, experiment.metrics))}; add "
                "it to a table of its own data set"
            )
        rows.append(
            PaperRow(path.stem, PaperTraining(str(path.resolve()), baseline), curve=path.stem)
        )
    return replace(experiment, rows=tuple(rows))


def _work(recipe: Recipe, flops: FlopsPerClip) -> float:
    """FLOPs of a process in an iteration at the baseline's shape."""
    base = recipe.base_shape
    return base.batch * flops(base.frames, base.crop) / processes_of(recipe)
