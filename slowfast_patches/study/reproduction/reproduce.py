"""From a request to the plan, the runs and the tables."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from multigrid.cost import FlopsPerClip
from slowfast_patches import patching
from slowfast_patches.config import load_recipe
from slowfast_patches.config.metrics import metric_names, metric_title
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.lists import read_list
from slowfast_patches.launch.launch import processes_of
from slowfast_patches.launch.slurm import Slurm
from slowfast_patches.models.flops import flops_per_clip
from slowfast_patches.plan.step_times import (
    UNTIMED,
    estimated_timing,
    measured_timing,
    read_step_times,
)
from slowfast_patches.study.reproduction.cluster import submit
from slowfast_patches.study.reproduction.estimate import (
    Estimate,
    Estimator,
    TimingOf,
    format_estimates,
    total_seconds,
)
from slowfast_patches.study.reproduction.experiment import Experiment, Row, Training
from slowfast_patches.study.reproduction.figures import plot_outcome
from slowfast_patches.study.reproduction.outcome import (
    TOY_MARK,
    Outcome,
    format_outcome,
    make_outcome,
    write_outcome,
)
from slowfast_patches.study.reproduction.paper import EXPERIMENTS
from slowfast_patches.study.reproduction.recipes import Choices, Recipes, trainings_of
from slowfast_patches.study.reproduction.toy import Toy
from slowfast_patches.study.reproduction.toy_inputs import make_toy_inputs
from slowfast_patches.study.runs import Arm, check_own_keys, train_all
from slowfast_patches.utils.report import format_duration

__all__ = ["Request", "reproduce"]

_TOY_FOLDER = "demo"
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
        return self.output / _TOY_FOLDER if self.toy else self.output


def reproduce(request: Request) -> list[dict[str, Any]]:
    """Print the plan of a request, run it as asked, then write and print its tables.

    Returns:
        each experiment as plain data: what was measured, or what would run (--dry-run).

    Raises:
        ValueError: something that would keep a run from training, before any has begun.
        RunFailedError: a run failed; those before it are kept.
    """
    patching.apply()
    check_own_keys(request.overrides)
    experiments = [_with_own(EXPERIMENTS[name], request.own) for name in request.names]
    recipes = Recipes(_choices(request))
    trainings = trainings_of(experiments)
    planned = _print_plan(request, experiments, recipes, trainings)
    if request.dry_run:
        return planned
    made = {training: recipes.recipe(training, base) for training, base in trainings.items()}
    if request.local or request.toy:
        _prepare(request, made)
        for _ in train_all(list(made.values()), request.seeds, request.folder, request.run_net):
            _report(request, experiments, made)
    elif request.slurm is not None:
        _prepare(request, made)
        _report(request, experiments, made)  # refuses results of other recipes
        runs = [(arm, seed) for seed in request.seeds for arm in made.values()]
        queued = submit(runs, request.folder, request.run_net, request.slurm)
        print(
            f"{len(queued)} jobs queued: {', '.join(queued.values()) or 'all are done or queued'}"
        )
    found = list[dict[str, Any]]()
    for text, outcome in _report(request, experiments, made):
        print(f"\n{text}")
        found.append(outcome.to_json())
    print(f"\nReports: {request.folder}")
    return found


def _with_own(experiment: Experiment, own: Sequence[Path]) -> Experiment:
    """An experiment with a user's recipes as further rows, compared with its first baseline.

    Raises:
        ValueError: two of the same name, or one that is judged by other metrics.
    """
    baseline, stems = experiment.rows[0].baseline, [path.stem for path in own]
    if len(set(stems)) < len(stems):
        raise ValueError(f"--add needs different file names, which name the runs: {stems}")
    for path in own:
        metrics = metric_names(load_recipe(path))
        if metrics != experiment.metrics:
            raise ValueError(
                f"{path} is judged by {' and '.join(map(metric_title, metrics))}, "
                f"{experiment.name} by {' and '.join(map(metric_title, experiment.metrics))}; add "
                "it to a table of its own data set"
            )
    rows = [
        Row(path.stem, Training(str(path.resolve())), baseline, curve=path.stem) for path in own
    ]
    return replace(experiment, rows=(*experiment.rows, *rows))


def _choices(request: Request) -> Choices:
    if request.toy is None:
        return Choices(request.configs, request.data, request.weights, request.overrides)
    data = {name: str(_toy_data(request) / name) for name in ("kinetics", "ssv2", "charades")}
    weights = {start: str(_toy_data(request) / f"{start}.pyth") for start in _STARTS}
    return Choices(request.configs, data, weights, request.overrides, request.toy)


def _toy_data(request: Request) -> Path:
    return request.folder / "data"


def _print_plan(
    request: Request,
    experiments: Sequence[Experiment],
    recipes: Recipes,
    trainings: Mapping[Training, Training],
) -> list[dict[str, Any]]:
    """The runs of each experiment, and what all of them would take together; as plain data, too."""
    if request.toy:
        print(f"{TOY_MARK}\n")
    start = experiments[0].rows[0]
    first = recipes.recipe(start.training, start.baseline)
    estimator = Estimator(recipes, _timing_of(request, first))
    found, planned = dict[Training, Estimate](), list[dict[str, Any]]()
    for experiment in experiments:
        for training, base in trainings_of([experiment]).items():
            if training not in found:
                found[training] = estimator.estimate(training, base)
        of_rows = {row: found[row.training] for row in experiment.rows}
        print(f"{format_estimates(experiment, of_rows, request.seeds)}\n", flush=True)
        rows = [{"run": row.label, **of_rows[row].to_json()} for row in experiment.rows]
        planned.append({"title": experiment.title, "seeds": list(request.seeds), "rows": rows})
    runs, seconds = (
        len(trainings) * len(request.seeds),
        total_seconds(found.values(), request.seeds),
    )
    misfits = [e for e in found.values() if e.misfit]
    if misfits:
        print(
            f"no times for {len(misfits)} recipes, such as {misfits[0].arm.cfg_file.name}: "
            f"{misfits[0].misfit}\n"
        )
    said = "unknown: give --step-times FILE" if seconds is None else format_duration(seconds)
    print(
        f"{runs} runs in all: {len(trainings)} recipes, each counted once, × {len(request.seeds)} "
        f"seed{'s' * (len(request.seeds) > 1)}; training time, without loading and evaluation: "
        f"{said}"
    )
    return planned


def _timing_of(request: Request, first: Arm) -> TimingOf:
    """What the request says of the time that iterations take; `first` is the first run listed."""
    if request.step_seconds is not None:
        return _in_proportion(request.step_seconds, first.recipe)
    files = [read_step_times(path) for path in request.step_times]
    return lambda recipe, _: measured_timing(files, recipe) if files else UNTIMED


def _in_proportion(seconds: float, first: Recipe) -> TimingOf:
    """Times from that of an iteration of one arm, at its baseline's shape: the FLOPs that a
    process does in a second are taken to be the same everywhere."""

    def work(recipe: Recipe, flops: FlopsPerClip) -> float:
        base = recipe.base_shape
        return base.batch * flops(base.frames, base.crop) / processes_of(recipe)

    rate = seconds / work(first, flops_per_clip(first))
    return lambda recipe, flops: estimated_timing(recipe, rate * work(recipe, flops), flops)


def _prepare(request: Request, recipes: Mapping[Training, Arm]) -> None:
    """Look at everything that the runs need before the first of them; make it for toys."""
    if request.toy:
        make_toy_inputs(_toy_data(request), recipes, request.configs, request.toy)
    for training, arm in recipes.items():
        if training.start in _STARTS and not arm.recipe.train.checkpoint_file_path:
            raise ValueError(
                f"{arm.name} starts from {_STARTS[training.start]}: give "
                f"--{training.start}-weights FILE"
            )
        if (path := arm.recipe.train.checkpoint_file_path) and not Path(path).is_file():
            raise ValueError(f"{arm.name} starts from {path}: no such file")
    _check_lists([arm.recipe for arm in recipes.values()])


def _check_lists(cfgs: Sequence[Recipe]) -> None:
    """Read the lists of every data set once."""
    seen = set[tuple[str, str, str]]()
    for recipe in cfgs:
        name, data = recipe.train.dataset, recipe.data
        if not data.path_to_data_dir:
            raise ValueError(f"the data set {name} is needed: give --{name} DIR")
        place = (name, data.path_to_data_dir, data.path_prefix)
        if place not in seen:
            seen.add(place)
            for split in ("train", "val", "test"):
                read_list(recipe, split)


def _report(
    request: Request, experiments: Sequence[Experiment], recipes: Mapping[Training, Arm]
) -> list[tuple[str, Outcome]]:
    """Write every experiment's report; their tables as text, and what is in them."""
    command = shlex.join(["python", "tools/reproduce.py", *request.command])
    found = []
    for experiment in experiments:
        outcome = make_outcome(
            experiment,
            recipes,
            request.seeds,
            request.folder,
            toy=request.toy is not None,
            command=command,
        )
        path = write_outcome(outcome, request.folder)
        if experiment.is_figure:
            plot_outcome(outcome, path.with_suffix(".png"))
        mark = f"{TOY_MARK}\n" if request.toy else ""
        found.append((f"{mark}{experiment.title}\n\n{format_outcome(outcome)}", outcome))
    return found
