"""Runs of arms, one for each seed: trained once, one after another or some at a time, and their
results read."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from multigrid import Cost
from slowfast_patches.config.recipe import differences, keys_of, stored_keys
from slowfast_patches.study.arms import Arm, cost_of
from slowfast_patches.train.record.result import read_result
from slowfast_patches.utils.command_line import ToolError
from slowfast_patches.utils.tables import format_duration, format_flops

__all__ = [
    "ArmRun",
    "Result",
    "Results",
    "RunFailedError",
    "each_seed",
    "find_results",
    "run_command",
    "run_folder",
    "train_all",
    "working_seconds",
]

ArmRun = tuple[Arm, int]
"""An arm and a seed."""

Result = dict[str, Any]
"""A run's result.json."""

Results = Mapping[tuple[str, int], Result]
"""Of the runs that are finished, by the arm's name and the seed."""


_POLL = 0.1
"""Seconds between two looks at the processes that train."""


class RunFailedError(ToolError):
    """A training ended without a result; the message names it, its exit status and its folder."""


def working_seconds(result: Result) -> float:
    """Seconds of training, loading included, evaluation left out."""
    seconds: Mapping[str, float] = result["seconds"]
    return seconds["training"] + seconds["loading"]


def each_seed(arms: Sequence[Arm], seeds: Sequence[int]) -> list[ArmRun]:
    """Every arm with every seed, all arms with one seed before the next seed."""
    return [(arm, seed) for seed in seeds for arm in arms]


def run_folder(output: Path, arm: Arm, seed: int) -> Path:
    """Where a run keeps its files."""
    return output / arm.folder / f"seed{seed}"


def run_command(arm: Arm, seed: int, folder: Path, run_net: Path) -> list[str]:
    """What trains an arm with a seed into a folder."""
    command = [sys.executable, str(run_net), "--cfg", str(arm.cfg_file)]
    return [*command, *arm.overrides, "RNG_SEED", str(seed), "OUTPUT_DIR", str(folder)]


def find_results(runs: Sequence[ArmRun], output: Path) -> Results:
    """The results that `output` holds.

    Raises:
        ValueError: one of them is of another config than the arm's; says what differs.
    """
    return {
        (arm.name, seed): _read_result(path, arm, seed)
        for arm, seed in runs
        if (path := run_folder(output, arm, seed) / "result.json").is_file()
    }


def _read_result(path: Path, arm: Arm, seed: int) -> Result:
    try:
        result: Result = read_result(path)
        stored = stored_keys(result["config"])
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path} is no run's result ({error}); remove it to train anew") from error
    if changes := result.get("rate_changes"):
        raise ValueError(f"{path}: trained with several rates ({changes[0]}); remove that run")
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
    runs: Sequence[ArmRun],
    output: Path,
    run_net: Path,
    cost: Callable[[Arm], Cost] = cost_of,
    at_once: int = 1,
) -> Generator[Results, None, None]:
    """Train what `output` lacks in the order of the runs, `at_once` of them side by side.

    Each run is a process of `run_net` (multigrid-train). What it says goes to standard error, as
    does the time that is left, where runs that are done, or `cost`, let it be known.
    Yields the results so far: before the first run, and after each. However it is left, the
    processes that train are told to save and to stop, and are waited for: to be closed.

    Raises:
        ValueError: as `find_results`, or an arm that has no `cost`, before anything is trained.
        RunFailedError: a run failed; those before it are kept.
    """
    results = dict(find_results(runs, output))
    yield dict(results)
    costs = {arm.name: cost(arm) for arm, _ in runs if len(results) < len(runs)}

    def missing() -> Iterator[ArmRun]:
        for number, (arm, seed) in enumerate(runs, start=1):
            title = f"run {number} of {len(runs)}: {arm.name}, seed {seed}"
            if (arm.name, seed) in results:
                _say(f"{title}: done before")
                continue
            todo = [other.name for other, s in runs if (other.name, s) not in results]
            _say(f"{title}: starts; {_time_left(costs, todo, results, at_once)}")
            yield arm, seed

    start = partial(_start, output=output, run_net=run_net)
    with closing(_side_by_side(missing(), start, at_once)) as ended:
        for (arm, seed), status in ended:
            folder = run_folder(output, arm, seed)
            results[arm.name, seed] = _result_of(arm, seed, folder, status)
            yield dict(results)


def _side_by_side(
    runs: Iterator[ArmRun], start: Callable[[ArmRun], subprocess.Popen[bytes]], at_once: int
) -> Generator[tuple[ArmRun, int], None, None]:
    """Each run with its process's exit status, as it ends. The next starts when there is room."""
    running = dict[subprocess.Popen[bytes], ArmRun]()
    try:
        while True:
            for run in islice(runs, at_once - len(running)):
                running[start(run)] = run
            if not running:
                return
            time.sleep(_POLL)
            for process in [process for process in running if process.poll() is not None]:
                yield running.pop(process), process.returncode
    finally:
        # After Ctrl-C they have got it too, and save; this is for those that have not.
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


def _time_left(
    costs: Mapping[str, Cost], todo: Sequence[str], results: Results, at_once: int
) -> str:
    """What runs of some arms will take, some at once: in proportion to their training FLOPs, of
    which the finished runs tell the speed, before the first by their costs."""
    flops = sum(costs[name].flops or 0.0 for name in todo)
    seconds = [costs[name].seconds for name in todo]
    if done := sum(costs[name].flops or 0.0 for name, _ in results):
        spent = [result["seconds"] for result in results.values()]
        took = sum(sum(seconds.values()) - seconds["waiting"] for seconds in spent)
        left = took / done * flops
    elif None not in seconds:
        left = sum(value or 0.0 for value in seconds)
    else:
        left_to_do = f"{_runs(len(todo))} with {format_flops(flops)} of training"
        return f"{left_to_do}; their time is known after the first"
    left /= min(at_once, len(todo))
    return f"about {format_duration(left)} left for {_runs(len(todo))}"


def _runs(number: int) -> str:
    return f"{number} run{'' if number == 1 else 's'}"


def _start(run: ArmRun, output: Path, run_net: Path) -> subprocess.Popen[bytes]:
    arm, seed = run
    command = run_command(arm, seed, run_folder(output, arm, seed), run_net)
    return subprocess.Popen(command, stdout=2)  # standard output is for what comes of it


def _result_of(arm: Arm, seed: int, folder: Path, status: int) -> Result:
    """What a run that has ended with an exit status has left."""
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
