"""From what a user asks for to the plan, the runs and the tables of the paper's experiments."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from slowfast_patches.study.arms import Arm, TimingOf, check_study, cost_of, measured_times
from slowfast_patches.study.experiments import (
    EXPERIMENTS,
    Experiment,
    Row,
    Training,
    trainings_of,
)
from slowfast_patches.study.jobs import submit_all
from slowfast_patches.study.report import measure
from slowfast_patches.study.runs import Results, find_results, train_all
from slowfast_patches.study.tables import (
    TOY_MARK,
    Estimate,
    Outcome,
    format_estimates,
    format_outcome,
    write_outcome,
)
from slowfast_patches.study.toy import Toy, make_toy_inputs
from slowfast_patches.study.trainings import Arms
from slowfast_patches.utils.tables import format_duration

__all__ = ["Request", "reproduce"]

_STARTS = {"imagenet": "an ImageNet ResNet", "kinetics": "a Kinetics-400 model"}


@dataclass(frozen=True)
class Request:
    """What a user asks for; the options of tools/reproduce.py.

    `own` are recipes to add as rows, `data` folders by data set, `weights` files by start;
    `command` is what was typed, to be repeated in the reports.
    """

    names: tuple[str, ...]
    seeds: tuple[int, ...]
    output: Path
    configs: Path
    run_net: Path
    own: tuple[Path, ...] = ()
    data: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    step_times: tuple[Path, ...] = ()
    step_seconds: float | None = None
    dry_run: bool = False
    local: bool = False
    slurm: Slurm | None = None
    toy: Toy | None = None
    command: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Where runs and reports go: toys never to the others'."""
        return self.output / "demo" if self.toy else self.output

    @property
    def toy_data(self) -> Path:
        return self.folder / "data"


def reproduce(request: Request) -> list[dict[str, Any]]:
    """Print the plan of a request, run it as asked, then write and print its tables.

    Returns:
        each experiment as plain data: what was measured, or what would run (--dry-run).

    Raises:
        ValueError: something that would keep a run from training, before any has begun.
        RunFailedError: a run failed; those before it are kept.
    """
    patching.apply()
    check_study(request.own, request.overrides)
    experiments = [_with_own(EXPERIMENTS[name], request.own) for name in request.names]
    made = _arms(request)
    arms = {training: made.arm(training) for training in trainings_of(experiments)}
    timing_of = _timing_of(request, arms[experiments[0].rows[0].training])
    estimates = {training: _estimate(training, arms, timing_of) for training in arms}
    planned = _print_plan(request, experiments, estimates)
    if request.dry_run:
        return planned
    return _run(request, experiments, arms, {e.arm.name: e.cost for e in estimates.values()})


def _run(
    request: Request,
    experiments: Sequence[Experiment],
    arms: Mapping[Training, Arm],
    costs: Mapping[str, Cost],
) -> list[dict[str, Any]]:
    """Train as asked, report after each run, and print the tables; as plain data, too."""
    where = (list(arms.values()), request.seeds, request.folder)
    if request.local or request.toy or request.slurm:
        _prepare(request, arms)
    if request.local or request.toy:
        for results in train_all(*where, request.run_net, lambda arm: costs[arm.name]):
            _report(request, experiments, arms, results)
    results = find_results(*where)  # refuses those of other recipes
    if request.slurm is not None:
        jobs = submit_all(*where, request.run_net, request.slurm)
        print(f"{len(jobs)} jobs queued: {', '.join(jobs.values()) or 'all are done or queued'}")
    outcomes = _report(request, experiments, arms, results)
    for outcome in outcomes:
        mark = f"{TOY_MARK}\n" if request.toy else ""
        print(f"\n{mark}{outcome.experiment.title}\n\n{format_outcome(outcome)}")
    print(f"\nReports: {request.folder}")
    return [outcome.to_json() for outcome in outcomes]


def _with_own(experiment: Experiment, own: Sequence[Path]) -> Experiment:
    """An experiment with a user's recipes as further rows, compared with its first baseline.

    Raises:
        ValueError: one that is judged by other metrics.
    """
    baseline, rows = trainings_of([experiment])[0], list(experiment.rows)
    for path in own:
        metrics = metric_names(load_recipe(path))
        if metrics != experiment.metrics:
            raise ValueError(
                f"{path} is judged by {' and '.join(map(metric_title, metrics))}, "
                f"{experiment.name} by {' and '.join(map(metric_title, experiment.metrics))}; add "
                "it to a table of its own data set"
            )
        rows.append(Row(path.stem, Training(str(path.resolve()), baseline), curve=path.stem))
    return replace(experiment, rows=tuple(rows))


def _arms(request: Request) -> Arms:
    data, weights = request.data, request.weights
    if request.toy:
        data = {name: str(request.toy_data / name) for name in ("kinetics", "ssv2", "charades")}
        weights = {start: str(request.toy_data / f"{start}.pyth") for start in _STARTS}
    return Arms(request.configs, data, weights, request.overrides, request.toy)


def _timing_of(request: Request, first: Arm) -> TimingOf | None:
    """What the request says of the time that iterations take. --step-seconds are those of `first`
    at its baseline's shape: the FLOPs that a process does in a second are taken to be the same
    everywhere."""
    if request.step_seconds is not None:
        rate = request.step_seconds / _work(first.recipe, flops_per_clip(first.recipe))
        return lambda recipe, flops: estimated_timing(recipe, rate * _work(recipe, flops), flops)
    return measured_times(request.step_times)


def _work(recipe: Recipe, flops: FlopsPerClip) -> float:
    """FLOPs of a process in an iteration at the baseline's shape."""
    base = recipe.base_shape
    return base.batch * flops(base.frames, base.crop) / processes_of(recipe)


def _estimate(
    training: Training, arms: Mapping[Training, Arm], timing_of: TimingOf | None
) -> Estimate:
    arm, baseline, misfit = arms[training], arms[training.baseline or training], None
    try:
        cost = cost_of(arm, timing_of)
    except MisfitError as error:
        cost, misfit = cost_of(arm), str(error)
    return Estimate(arm, cost, baseline.iterations / arm.iterations, misfit)


def _print_plan(
    request: Request,
    experiments: Sequence[Experiment],
    estimates: Mapping[Training, Estimate],
) -> list[dict[str, Any]]:
    """The runs of each experiment, and what all of them would take together; as plain data, too."""
    if request.toy:
        print(f"{TOY_MARK}\n")
    planned = list[dict[str, Any]]()
    for experiment in experiments:
        of_rows = [estimates[row.training] for row in experiment.rows]
        print(f"{format_estimates(experiment, of_rows, request.seeds)}\n")
        rows = [
            {"run": row.label, **estimate.to_json()}
            for row, estimate in zip(experiment.rows, of_rows, strict=True)
        ]
        planned.append({"title": experiment.title, "seeds": request.seeds, "rows": rows})
    misfits = [estimate for estimate in estimates.values() if estimate.misfit]
    if misfits:
        name, why = misfits[0].arm.cfg_file.name, misfits[0].misfit
        print(f"no times for {len(misfits)} recipes, such as {name}: {why}\n")
    seeds, seconds = len(request.seeds), [e.cost.seconds for e in estimates.values()]
    known = [value for value in seconds if value is not None]
    total = "unknown: give --step-times FILE"
    if len(known) == len(seconds):
        total = format_duration(seeds * sum(known))
    runs = f"{len(estimates)} recipes, each counted once, × {seeds} seed{'s' * (seeds > 1)}"
    took = f"training time, without loading and evaluation: {total}"
    print(f"{len(estimates) * seeds} runs in all: {runs}; {took}", flush=True)
    return planned


def _prepare(request: Request, arms: Mapping[Training, Arm]) -> None:
    """Look at everything that the runs need before the first of them; make it for toys."""
    if request.toy:
        make_toy_inputs(request.toy_data, arms, request.configs, request.toy)
    lists = dict[tuple[str, str, str], Recipe]()
    for training, arm in arms.items():
        weights, name, data = arm.recipe.train.checkpoint_file_path, arm.name, arm.recipe.data
        if training.start in _STARTS and not weights:
            option = f"--{training.start}-weights FILE"
            raise ValueError(f"{name} starts from {_STARTS[training.start]}: give {option}")
        if weights and not Path(weights).is_file():
            raise ValueError(f"{name} starts from {weights}: no such file")
        dataset = arm.recipe.train.dataset
        if not data.path_to_data_dir:
            raise ValueError(f"the data set {dataset} is needed: give --{dataset} DIR")
        lists[dataset, data.path_to_data_dir, data.path_prefix] = arm.recipe
    for recipe in lists.values():
        for split in ("train", "val", "test"):
            read_list(recipe, split)


def _report(
    request: Request,
    experiments: Sequence[Experiment],
    arms: Mapping[Training, Arm],
    results: Results,
) -> list[Outcome]:
    """Write every experiment's report of the results there are."""
    command = shlex.join(["python", "tools/reproduce.py", *request.command])
    outcomes = list[Outcome]()
    for experiment in experiments:
        measured = tuple(
            measure(arms[t], arms[t.baseline or t], request.seeds, results)
            for t in (row.training for row in experiment.rows)
        )
        toy = request.toy is not None
        outcomes.append(Outcome(experiment, measured, request.seeds, toy, command))
        write_outcome(outcomes[-1], request.folder)
    return outcomes
