"""Runs of recipes, one for each seed: trained once, one after another, and their results read."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from multigrid import Cost, schedule_cost
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import schedule_of
from slowfast_patches.config.stored import keys_of, stored_keys
from slowfast_patches.models.flops import flops_per_clip
from slowfast_patches.plan.plan import dataset_size
from slowfast_patches.plan.step_times import UNTIMED, StepTimes, measured_timing
from slowfast_patches.utils.command_line import ToolError
from slowfast_patches.utils.report import format_duration, format_flops

__all__ = [
    "Arm",
    "Result",
    "RunFailedError",
    "check_own_keys",
    "find_results",
    "run_command",
    "run_folder",
    "seconds_left",
    "train_all",
    "working_seconds",
]

Result = dict[str, Any]
"""A run's result.json."""


class RunFailedError(ToolError):
    """A training ended without a result; the message names it, its exit status and its folder."""


@dataclass(frozen=True)
class Arm:
    """A config, checked, under a name for people and one for its folder.

    `recipe` is what `cfg_file` and the KEY VALUE pairs `overrides` give; `iterations` how long it
    trains. `open_keys` are keys that are not known yet, as where results are only looked at: a run
    may have had any value of them.
    """

    name: str
    folder: str
    cfg_file: Path
    overrides: tuple[str, ...]
    recipe: Recipe
    iterations: int
    open_keys: frozenset[str] = frozenset()


_OWN_KEYS = {"RNG_SEED": "--seeds", "OUTPUT_DIR": "--output"}


def check_own_keys(overrides: Sequence[str]) -> None:
    """Raise ValueError for keys that each run has for itself."""
    for key, option in _OWN_KEYS.items():
        if key in overrides[::2]:
            raise ValueError(f"{key} is set for each run; use {option}")


def working_seconds(result: Result) -> float:
    """Seconds of training, loading included, evaluation left out."""
    seconds: Mapping[str, float] = result["seconds"]
    return seconds["training"] + seconds["loading"]


def run_folder(output: Path, arm: Arm, seed: int) -> Path:
    """Where a run keeps its files."""
    return output / arm.folder / f"seed{seed}"


def find_results(
    recipes: Sequence[Arm], seeds: Sequence[int], output: Path
) -> dict[tuple[str, int], Result]:
    """The results that `output` holds, by recipe's name and seed.

    Raises:
        ValueError: one of them is of another config than the recipe's; says what differs.
    """
    found = {}
    for arm in recipes:
        for seed in seeds:
            path = run_folder(output, arm, seed) / "result.json"
            if path.is_file():
                found[arm.name, seed] = _read_result(path, arm, seed)
    return found


def _read_result(path: Path, arm: Arm, seed: int) -> Result:
    try:
        result: Result = json.loads(path.read_text(encoding="utf-8"))
        stored = stored_keys(result["config"])
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path} is no run's result ({error}); remove it to train anew") from error
    wanted = keys_of(arm.recipe) | {"RNG_SEED": seed}
    # Where the run's own files lie, seen from wherever the command was given, changes no training.
    keys = sorted((stored.keys() | wanted.keys()) - {"OUTPUT_DIR"} - arm.open_keys)
    different = [
        f"{key} {stored.get(key, '(absent)')} there, {wanted.get(key, '(absent)')} now"
        for key in keys
        if stored.get(key, _ABSENT) != wanted.get(key, _ABSENT)
    ]
    if different:
        more = f" and {len(different) - 5} more" if len(different) > 5 else ""
        raise ValueError(
            f"{path} is of another config ({'; '.join(different[:5])}{more}); choose another "
            "--output, or remove that run"
        )
    return result


_ABSENT = object()


def train_all(
    recipes: Sequence[Arm],
    seeds: Sequence[int],
    output: Path,
    run_net: Path,
    step_times: Sequence[StepTimes] = (),
) -> Iterator[dict[tuple[str, int], Result]]:
    """Train what `output` lacks, all recipes with one seed before the next seed.

    Each run is a process of `run_net` (tools/run_net.py). What it says goes to standard error, as
    does the time that is left, where runs that are done, the one at work or measured step times
    let it be known. Yields the results so far, by recipe's name and seed: before the first run, and
    after each.

    Raises:
        ValueError: as `find_results`, or step times that are not of the recipes, before anything is
            trained.
        RunFailedError: a run failed; those before it are kept.
    """
    results = find_results(recipes, seeds, output)
    yield dict(results)
    runs = [(arm, seed) for seed in seeds for arm in recipes]
    costs = {r.name: _cost(r.recipe, step_times) for r in recipes if len(results) < len(runs)}
    flops = {name: cost.flops or 0.0 for name, cost in costs.items()}
    for number, (arm, seed) in enumerate(runs, start=1):
        title = f"run {number} of {len(runs)}: {arm.name}, seed {seed}"
        if (arm.name, seed) in results:
            _say(f"{title}: done before")
            continue
        todo = [r.name for r, s in runs if (r.name, s) not in results]
        left = partial(seconds_left, flops, todo, dict(results))
        expected = sum(costs[name].seconds or 0.0 for name in todo)
        _say(f"{title}: starts; {_describe(left() or expected, sum(flops[n] for n in todo))}")
        path = _train(arm, seed, run_folder(output, arm, seed), run_net, left)
        results[arm.name, seed] = _read_result(path, arm, seed)
        yield dict(results)


def run_command(arm: Arm, seed: int, folder: Path, run_net: Path) -> list[str]:
    """What trains a arm with a seed into a folder."""
    command = [sys.executable, str(run_net), "--cfg", str(arm.cfg_file)]
    return [*command, *arm.overrides, "RNG_SEED", str(seed), "OUTPUT_DIR", str(folder)]


def seconds_left(
    flops: Mapping[str, float],
    todo: Sequence[str],
    results: Mapping[tuple[str, int], Result],
    running: tuple[float, float] | None = None,
) -> float | None:
    """Seconds that runs will take, in proportion to their training FLOPs; None if nothing tells.

    Args:
        flops: of a run of each arm, by name.
        todo: the recipes of the runs to come, the one at work first.
        results: of those that are done, by recipe's name and seed.
        running: the seconds that the first of `todo` has taken, and those that it expects to take.
    """
    seconds = sum(sum(result["seconds"].values()) for result in results.values())
    work, left = sum(flops[name] for name, _ in results), 0.0
    if running is not None:
        seconds, work, left = seconds + sum(running), work + flops[todo[0]], running[1]
        todo = todo[1:]
    return left + seconds / work * sum(flops[name] for name in todo) if work else None


def _describe(seconds: float | None, flops: float = 0.0) -> str:
    if not seconds:
        return f"{format_flops(flops)} of training; their time is known after its first iterations"
    return f"about {format_duration(seconds)} left for all"


def _cost(recipe: Recipe, step_times: Sequence[StepTimes]) -> Cost:
    """Of the whole training, in seconds too where step times are given."""
    schedule = schedule_of(recipe, dataset_size(recipe))
    timing = measured_timing(step_times, recipe) if step_times else UNTIMED
    return schedule_cost(schedule, flops_per_clip(recipe), timing.ours)


def _train(
    arm: Arm,
    seed: int,
    folder: Path,
    run_net: Path,
    left: Callable[[tuple[float, float]], float | None],
) -> Path:
    """Train one arm with one seed; returns the path of its result.

    `left` gives the seconds of all runs by those of this one, taken and to come.
    """
    command = run_command(arm, seed, folder, run_net)
    process = subprocess.Popen(command, stdout=2)  # standard output is for what comes of it
    try:
        status = _wait(process, folder / "metrics.jsonl", left)
    except KeyboardInterrupt:  # the run has got it too, and saves; this is for one that has not
        process.terminate()
        process.wait()
        raise
    path = folder / "result.json"
    if status or not path.is_file():
        raise RunFailedError(
            f"{arm.name}, seed {seed}, ended with exit status {status} and "
            f"{'a' if path.is_file() else 'no'} result; its log is in {folder}. Finished runs are "
            "kept: the same command continues"
        )
    return path


_LOOK_SECONDS, _SAY_SECONDS = 1.0, 600.0
"""How often a run's record is looked at, and how often something is said of it."""


def _wait(
    process: subprocess.Popen[bytes],
    record: Path,
    left: Callable[[tuple[float, float]], float | None],
) -> int:
    """Wait for a run; say now and then what all will take, by what it notes. Its exit status."""
    said, began = -_SAY_SECONDS, time.time()
    while True:
        try:
            return process.wait(_LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            is_due = time.monotonic() - said >= _SAY_SECONDS
        if is_due and (running := _progress(record, began)) is not None:
            _say(_describe(left(running)))
            said = time.monotonic()


def _progress(record: Path, began: float) -> tuple[float, float] | None:
    """The seconds that a run has taken, and those that it expects to take, by its last report
    since it `began`."""
    if not record.is_file() or record.stat().st_mtime < began:
        return None
    for line in reversed(record.read_text(encoding="utf-8").splitlines()):
        with suppress(ValueError):  # not written whole
            report = json.loads(line)
            if report["type"] == "train" and report["seconds_left"]:  # 0: not known yet, or over
                return report["seconds"], report["seconds_left"]
    return None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
