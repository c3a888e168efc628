"""Runs of arms, one for each seed: trained once, one after another, and their results read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from multigrid import Cost
from slowfast_patches.config.recipe import differences, keys_of, stored_keys
from slowfast_patches.study.arms import Arm, cost_of
from slowfast_patches.utils.command_line import ToolError
from slowfast_patches.utils.tables import format_duration, format_flops

__all__ = [
    "Result",
    "Results",
    "RunFailedError",
    "find_results",
    "run_command",
    "run_folder",
    "train_all",
    "working_seconds",
]

Result = dict[str, Any]
"""A run's result.json."""

Results = Mapping[tuple[str, int], Result]
"""Of the runs that are finished, by the arm's name and the seed."""


class RunFailedError(ToolError):
    """A training ended without a result; the message names it, its exit status and its folder."""


def working_seconds(result: Result) -> float:
    """Seconds of training, loading included, evaluation left out."""
    seconds: Mapping[str, float] = result["seconds"]
    return seconds["training"] + seconds["loading"]


def run_folder(output: Path, arm: Arm, seed: int) -> Path:
    """Where a run keeps its files."""
    return output / arm.folder / f"seed{seed}"


def run_command(arm: Arm, seed: int, folder: Path, run_net: Path) -> list[str]:
    """What trains an arm with a seed into a folder."""
    command = [sys.executable, str(run_net), "--cfg", str(arm.cfg_file)]
    return [*command, *arm.overrides, "RNG_SEED", str(seed), "OUTPUT_DIR", str(folder)]


def find_results(arms: Sequence[Arm], seeds: Sequence[int], output: Path) -> Results:
    """The results that `output` holds.

    Raises:
        ValueError: one of them is of another config than the arm's; says what differs.
    """
    return {
        (arm.name, seed): _read_result(path, arm, seed)
        for arm in arms
        for seed in seeds
        if (path := run_folder(output, arm, seed) / "result.json").is_file()
    }


def _read_result(path: Path, arm: Arm, seed: int) -> Result:
    try:
        result: Result = json.loads(path.read_text(encoding="utf-8"))
        stored = stored_keys(result["config"])
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path} is no run's result ({error}); remove it to train anew") from error
    # Where the run's own files lie, seen from wherever the command was given, changes no training.
    ignored = {"OUTPUT_DIR", *arm.open_keys}
    wanted = keys_of(arm.recipe) | {"RNG_SEED": seed}
    differing = differences(stored, wanted, "now", ignored)
    if differing:
        more = f" and {len(differing) - 5} more" if len(differing) > 5 else ""
        raise ValueError(
            f"{path} is of another config ({'; '.join(differing[:5])}{more}); choose another "
            "--output, or remove that run"
        )
    return result


def train_all(
    arms: Sequence[Arm],
    seeds: Sequence[int],
    output: Path,
    run_net: Path,
    cost: Callable[[Arm], Cost] = cost_of,
) -> Iterator[Results]:
    """Train what `output` lacks, all arms with one seed before the next seed.

    Each run is a process of `run_net` (tools/run_net.py). What it says goes to standard error, as
    does the time that is left, where runs that are done, or `cost`, let it be known.
    Yields the results so far: before the first run, and after each.

    Raises:
        ValueError: as `find_results`, or an arm that has no `cost`, before anything is trained.
        RunFailedError: a run failed; those before it are kept.
    """
    results = dict(find_results(arms, seeds, output))
    yield dict(results)
    runs = [(arm, seed) for seed in seeds for arm in arms]
    costs = {arm.name: cost(arm) for arm in arms if len(results) < len(runs)}
    for number, (arm, seed) in enumerate(runs, start=1):
        title = f"run {number} of {len(runs)}: {arm.name}, seed {seed}"
        if (arm.name, seed) in results:
            _say(f"{title}: done before")
            continue
        todo = [other.name for other, s in runs if (other.name, s) not in results]
        _say(f"{title}: starts; {_time_left(costs, todo, results)}")
        results[arm.name, seed] = _train(arm, seed, run_folder(output, arm, seed), run_net)
        yield dict(results)


def _time_left(costs: Mapping[str, Cost], todo: Sequence[str], results: Results) -> str:
    """What runs of some arms will take: in proportion to their training FLOPs, of which the
    finished runs tell the speed, before the first by their costs."""
    flops = sum(costs[name].flops or 0.0 for name in todo)
    seconds = [costs[name].seconds for name in todo]
    if done := sum(costs[name].flops or 0.0 for name, _ in results):
        took = sum(sum(result["seconds"].values()) for result in results.values())
        left = took / done * flops
    elif None not in seconds:
        left = sum(value or 0.0 for value in seconds)
    else:
        left_to_do = f"{_runs(len(todo))} with {format_flops(flops)} of training"
        return f"{left_to_do}; their time is known after the first"
    return f"about {format_duration(left)} left for {_runs(len(todo))}"


def _runs(number: int) -> str:
    return f"{number} run{'' if number == 1 else 's'}"


def _train(arm: Arm, seed: int, folder: Path, run_net: Path) -> Result:
    """Train one arm with one seed; its result."""
    command = run_command(arm, seed, folder, run_net)
    process = subprocess.Popen(command, stdout=2)  # standard output is for what comes of it
    try:
        status = process.wait()
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
    return _read_result(path, arm, seed)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
