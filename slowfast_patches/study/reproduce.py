"""From what a user asks for to the plan, the runs and the tables of experiments, the paper's or
ours."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
from slowfast_patches.study.arms import Arm, Arms, TimingOf, check_study, cost_of, measured_times
from slowfast_patches.study.compare import (
    Comparison,
    compare_lengths,
    compare_rows,
    format_comparison,
    write_comparison,
)
from slowfast_patches.study.curves.curves import step_timed
from slowfast_patches.study.curves.families import families_of
from slowfast_patches.study.digits import make_digits
from slowfast_patches.study.experiments import (
    EXPERIMENTS,
    SCRATCH,
    Experiment,
    Row,
    Training,
    trainings_of,
)
from slowfast_patches.study.jobs import submit_all
from slowfast_patches.study.report import Measured, measure
from slowfast_patches.study.runs import Results, Run, find_results, train_all
from slowfast_patches.study.tables import (
    TOY_MARK,
    Outcome,
    format_costs,
    format_outcome,
    write_outcome,
)
from slowfast_patches.study.toy import make_toy_videos
from slowfast_patches.utils.tables import format_duration, format_list

__all__ = ["Request", "reproduce"]


@dataclass(frozen=True)
class Request:
    """What a user asks for; the options of tools/reproduce.py.

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
        return shlex.join(["python", "tools/reproduce.py", *self.command])

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
    experiments = [_with_own(EXPERIMENTS[name], request.own) for name in request.names]
    trainings = trainings_of(experiments)
    if request.trains and any(training.data == "digits" for training in trainings):
        _make_digits(request)
    arms = {training: request.arms.arm(training) for training in trainings}
    costs = _costs(request, arms)
    runs = _runs(request, experiments, arms)
    planned = _print_plan(request, experiments, arms, costs, runs)
    return planned if request.dry_run else _run(request, experiments, arms, costs, runs)


def _run(
    request: Request,
    experiments: Sequence[Experiment],
    arms: Mapping[Training, Arm],
    costs: Mapping[str, Cost],
    runs: Sequence[Run],
) -> list[dict[str, Any]]:
    """Train as asked, report after each run, and print the tables; as plain data, too."""
    if request.trains:
        _prepare(request, arms)
    if request.local or request.is_toy:
        cost, where = (lambda arm: costs[arm.name]), (request.folder, request.run_net)
        with closing(train_all(runs, *where, cost, request.at_once)) as progress:
            for results in progress:
                _report(request, experiments, arms, costs, results)
    results = find_results(runs, request.folder)  # refuses those of other recipes
    if request.slurm is not None:
        jobs = submit_all(runs, request.folder, request.run_net, request.slurm)
        print(f"{len(jobs)} jobs queued: {', '.join(jobs.values()) or 'all are done or queued'}")
    outcomes = _report(request, experiments, arms, costs, results)
    for outcome in outcomes:
        mark = f"{TOY_MARK}\n" if request.is_toy else ""
        if isinstance(outcome, Outcome):
            title, text = outcome.experiment.title, format_outcome(outcome)
        else:
            title, text = outcome.title, format_comparison(outcome)
        print(f"\n{mark}{title}\n\n{text}")
    print(f"\nReports: {request.folder}")
    return [outcome.to_json() for outcome in outcomes]


def _with_own(experiment: Experiment, own: Sequence[Path]) -> Experiment:
    """An experiment with a user's recipes as further rows, compared with its first baseline.

    Raises:
        ValueError: one that is judged by other metrics.
    """
    first, rows = experiment.rows[0].training, list(experiment.rows)
    baseline = first.baseline or first
    for path in own:
        metrics = metric_names(load_recipe(path))
        if metrics != experiment.metrics:
            raise ValueError(
                f"{path} is judged by {' and '.join(map(metric_title, metrics))}, "
                f"{experiment.name} by {' and '.join(map(metric_title, experiment.metrics))}; add "
                "it to a table of its own data set"
            )
        for length in experiment.lengths or (1.0,):
            label = f"{path.stem}, {length:g}× its length" if experiment.lengths else path.stem
            recipe = str(path.resolve())
            training = Training(recipe, baseline, length=length, data=first.data)
            rows.append(Row(label, training, curve=path.stem))
    return replace(experiment, rows=tuple(rows))


def _runs(
    request: Request, experiments: Sequence[Experiment], arms: Mapping[Training, Arm]
) -> list[Run]:
    """Each training with the seeds of the experiments that it is in, one seed before the next."""
    wanted = {
        (training, seed)
        for experiment in experiments
        for training in trainings_of([experiment])
        for seed in experiment.seeds_of(request.seeds)
    }
    pairs = ((training, seed) for seed in request.seeds for training in arms)
    return [(arms[training], seed) for training, seed in pairs if (training, seed) in wanted]


def _costs(request: Request, arms: Mapping[Training, Arm]) -> dict[str, Cost]:
    """What a run of each arm takes, by its name; those that no step times hold for are named."""
    timing_of = _timing_of(request, next(iter(arms.values())))
    costs, misfits = dict[str, Cost](), list[str]()
    for arm in arms.values():
        try:
            costs[arm.name] = cost_of(arm, timing_of)
        except MisfitError as error:
            costs[arm.name] = cost_of(arm)
            misfits.append(f"{arm.cfg_file.name}: {error}")
    if misfits:
        print(f"no times for {len(misfits)} recipes, such as {misfits[0]}\n")
    return costs


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


def _print_plan(
    request: Request,
    experiments: Sequence[Experiment],
    arms: Mapping[Training, Arm],
    costs: Mapping[str, Cost],
    runs: Sequence[Run],
) -> list[dict[str, Any]]:
    """The runs of each experiment, and what all of them would take together; as plain data, too."""
    if request.is_toy:
        print(f"{TOY_MARK}\n")
    planned = list[dict[str, Any]]()
    for experiment in experiments:
        seeds, rows = (
            experiment.seeds_of(request.seeds),
            list(_planned_rows(experiment, arms, costs)),
        )
        print(f"{format_costs(experiment.title, rows, len(seeds))}\n")
        planned.append({"title": experiment.title, "seeds": seeds, "rows": rows})
    known = [seconds for arm, _ in runs if (seconds := costs[arm.name].seconds) is not None]
    total = "unknown: give --step-times FILE"
    if len(known) == len(runs):
        total = format_duration(sum(known))
    recipes = Counter(Counter(arm.name for arm, _ in runs).values())
    counts = (f"{recipes[n]} recipes × {n} seed{'s' if n > 1 else ''}" for n in sorted(recipes))
    print(
        f"{len(runs)} runs in all: {format_list(counts)}, each recipe counted once; training time, "
        f"without loading and evaluation: {total}",
        flush=True,
    )
    return planned


def _planned_rows(
    experiment: Experiment, arms: Mapping[Training, Arm], costs: Mapping[str, Cost]
) -> Iterator[dict[str, Any]]:
    """What a run of each row takes; `factor` is how many times fewer iterations than its baseline's
    it has."""
    for row in experiment.rows:
        arm = arms[row.training]
        factor = arms[row.training.baseline or row.training].iterations / arm.iterations
        cost = {**asdict(costs[arm.name]), "factor": factor}
        yield {"run": row.label, "config": arm.config, **cost}


def _make_digits(request: Request) -> None:
    """Their lists, where there are words to make them from; that there are none is said later."""
    data = request.arms.data
    if "words" in data and not request.is_toy:
        make_digits(Path(data["words"]), Path(data["digits"]))


def _prepare(request: Request, arms: Mapping[Training, Arm]) -> None:
    """Look at everything that the runs need before the first of them; make it for toys."""
    if request.is_toy:
        datasets = {arm.recipe.train.dataset.lower() for arm in arms.values()}
        make_toy_videos(request.folder / "data", datasets)
    lists = dict[tuple[str, str, str], Recipe]()
    for training, arm in arms.items():
        weights, name, data = arm.recipe.train.checkpoint_file_path, arm.name, arm.recipe.data
        if training.start != SCRATCH and not weights and not request.is_toy:
            raise ValueError(
                f"{name} starts from a model of {training.start}: give --{training.start}-weights "
                "FILE"
            )
        if weights and not Path(weights).is_file():
            raise ValueError(f"{name} starts from {weights}: no such file")
        dataset = arm.recipe.train.dataset
        if not data.path_to_data_dir:
            option = {"digits": "words"}.get(training.data, training.data or dataset)
            raise ValueError(f"the data set {option} is needed: give --{option} DIR")
        lists[dataset, data.path_to_data_dir, data.path_prefix] = arm.recipe
    for recipe in lists.values():
        for split in ("train", "val", "test"):
            read_list(recipe, split)


def _report(
    request: Request,
    experiments: Sequence[Experiment],
    arms: Mapping[Training, Arm],
    costs: Mapping[str, Cost],
    results: Results,
) -> list[Outcome | Comparison]:
    """Write every experiment's report of the results there are."""
    outcomes = list[Outcome | Comparison]()
    for experiment in experiments:
        if experiment.is_ours:
            found = _compared(request, experiment, arms, costs, results)
            write_comparison(found, request.folder, experiment.name)
            outcomes.append(found)
        else:
            outcome = _outcome(request, experiment, arms, results)
            write_outcome(outcome, request.folder)
            outcomes.append(outcome)
    return outcomes


def _outcome(
    request: Request, experiment: Experiment, arms: Mapping[Training, Arm], results: Results
) -> Outcome:
    """The paper's rows with what the results hold of them."""

    def measured(training: Training) -> Measured:
        baseline = arms[training.baseline or training]
        return measure(arms[training], baseline, request.seeds, results)

    rows = tuple((row, measured(row.training)) for row in experiment.rows)
    return Outcome(experiment, rows, request.seeds, request.is_toy, request.typed)


def _compared(
    request: Request,
    experiment: Experiment,
    arms: Mapping[Training, Arm],
    costs: Mapping[str, Cost],
    results: Results,
) -> Comparison:
    """What the results hold of curves or a table of ours."""
    names = {arms[row.training].name for row in experiment.rows}
    timed = step_timed({name: costs[name] for name in names}, request.step_times)
    of_runs = (experiment.seeds_of(request.seeds), results, request.typed, timed)
    if experiment.lengths:
        found = compare_lengths(families_of(experiment, arms), *of_runs)
    else:
        found = compare_rows({row.label: arms[row.training] for row in experiment.rows}, *of_runs)
    return replace(found, title=experiment.title, note=TOY_MARK if request.is_toy else "")
