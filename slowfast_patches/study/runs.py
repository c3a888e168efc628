"""Runs of arms, one for each seed: the finished ones as a table, and training the others."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from multigrid import schedule_cost
from slowfast_patches.config.metrics import metric_names
from slowfast_patches.config.recipe import differences, keys_of, stored_keys
from slowfast_patches.datasets.lists.dataset_lists import count_list
from slowfast_patches.plan.evaluations import (
    affordable_evaluations,
    evaluation_flops,
    multi_view_flops,
)
from slowfast_patches.study.arms import Arm
from slowfast_patches.train.result import read_result
from slowfast_patches.utils.command_line import ToolError
from slowfast_patches.utils.tables import first_few, format_duration

__all__ = ["RunFailedError", "Study", "run_command", "train"]

_POLL = 0.1
"""Seconds between two looks at the processes that train."""

_COLUMNS = (
    *("arm", "label", "length", "seed", "iterations", "epochs", "clips", "flops"),
    *("seconds", "evaluating", "total", "waiting", "machine", "versions", "result"),
)


class RunFailedError(ToolError):
    """A training ended without a result."""


@dataclass(frozen=True)
class Study:
    """Arms, trained with each of some seeds, each run in a folder of its own in `output`.

    step_seconds: seconds of a run by its arm's name, measured alone, to compare arms by; without,
        they are compared by the clock.
    """

    arms: Sequence[Arm]
    seeds: Sequence[int]
    output: Path
    step_seconds: Mapping[str, float] | None = None

    @property
    def size(self) -> int:
        """The number of runs."""
        return len(self.arms) * len(self.seeds)

    def folder(self, arm: Arm, seed: int) -> Path:
        """The folder of a run's files."""
        return self.output / arm.folder / f"seed{seed}"

    def missing(self) -> list[tuple[Arm, int]]:
        """The runs without a result: all arms with a seed, short ones first, before the next."""
        arms = sorted(self.arms, key=lambda arm: arm.length)
        runs = [(arm, seed) for seed in self.seeds for arm in arms]
        return [run for run in runs if not (self.folder(*run) / "result.json").is_file()]

    def runs(self) -> pd.DataFrame:
        """The finished runs, a row each.

        - arm, label, length, seed: which run it is; `Arm` says what they mean.
        - iterations, epochs, clips, flops: of training, FLOPs of forward and backward.
        - seconds, evaluating, total: of training with loading, of evaluations and the test, and
          of both, by the clock.
        - waiting: the share of training without a core (of a single process on the CPU).
        - machine, versions: what it ran on; result: its result.json.
        - the arms' metrics, in per cent.
        - clock: the seconds that arms are compared by, those of `step_seconds` or by the clock.
        - speed_up, total_speed_up, iteration_factor: the clock, the total and the iterations of
          the baseline's run with the same seed, as a multiple of this run's; nan where that one
          is not finished.

        Raises:
            ValueError: a result is damaged, or of another config than the arm's.
        """
        metrics = dict.fromkeys(name for arm in self.arms for name in metric_names(arm.recipe))
        rows = [
            _row(arm, seed, _read(path, arm, seed), metrics)
            for arm in self.arms
            for seed in self.seeds
            if (path := self.folder(arm, seed) / "result.json").is_file()
        ]
        runs = pd.DataFrame(rows, columns=[*_COLUMNS, *metrics])
        times = self.step_seconds
        runs["clock"] = runs["arm"].map(times) if times else runs["seconds"]
        baselines = runs["arm"].map({arm.name: arm.baseline for arm in self.arms})
        index = pd.MultiIndex.from_frame(runs[["arm", "seed"]])
        baseline = pd.MultiIndex.from_arrays([baselines, runs["seed"]])
        factors = {"speed_up": "clock", "total_speed_up": "total", "iteration_factor": "iterations"}
        for factor, column in factors.items():
            values = runs[column].set_axis(index)
            runs[factor] = values.reindex(baseline).to_numpy() / runs[column]
        return runs


def run_command(arm: Arm, seed: int, folder: Path, run_net: Path) -> list[str]:
    """The command that trains an arm with a seed into a folder."""
    command = [sys.executable, str(run_net), "--cfg", str(arm.cfg_file)]
    return [*command, *arm.overrides, "RNG_SEED", str(seed), "OUTPUT_DIR", str(folder)]


def _row(arm: Arm, seed: int, result: dict[str, Any], metrics: Iterable[str]) -> dict[str, Any]:
    seconds = result["seconds"]
    training = seconds["training"] + seconds["loading"]
    evaluating = seconds["evaluating"] + seconds.get("testing", 0.0)
    machine = result["machine"]
    where = f"CPU: {machine['processor']}, {machine['cores']} cores"
    if machine["gpus"]:
        where = f"{result['world_size']} × {machine['gpus'][0]}"
    return {
        "arm": arm.name,
        "label": arm.label,
        "length": arm.length,
        "seed": seed,
        **{name: result[name] for name in ("iterations", "epochs", "clips", "flops")},
        "seconds": training,
        "evaluating": evaluating,
        "total": training + evaluating,
        "waiting": seconds["waiting"] / seconds["training"],
        "machine": where,
        "versions": ", ".join(f"{name} {v}" for name, v in result["versions"].items()),
        "result": result,
        **{name: result.get(name) for name in metrics},
    }


def _read(path: Path, arm: Arm, seed: int) -> dict[str, Any]:
    try:
        result = read_result(path)
        stored = stored_keys(result["config"])
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path} is no run's result ({error}); remove it to train anew") from error
    if changes := result.get("rate_changes"):
        raise ValueError(f"{path}: trained with several rates ({changes[0]}); remove that run")
    wanted = keys_of(arm.recipe) | {"RNG_SEED": seed}
    # The folder depends on where the command was given.
    if differing := differences(stored, wanted, "now", {"OUTPUT_DIR", *arm.open_keys}):
        raise ValueError(
            f"{path} is of another config ({first_few(differing, 5)}); choose another --output, or "
            "remove that run"
        )
    return result


def train(study: Study, run_net: Path, at_once: int = 1) -> Generator[pd.DataFrame, None, None]:
    """Train what a study lacks, and yield its finished runs before the first and after each.

    Each run is a process of `run_net` (multigrid-train), `at_once` of them side by side; their
    output and an estimate of the time that is left, by finished runs or else by step times, go to
    standard error. To be closed: running processes are then told to save, and waited for.

    Raises:
        ValueError: as `Study.runs`, before anything is trained.
        RunFailedError: a run failed; those before it are kept.
    """
    finished = study.runs()
    yield finished
    todo = study.missing()
    running = dict[subprocess.Popen[bytes], tuple[Arm, int]]()
    try:
        while todo or running:
            while todo and len(running) < at_once:
                left = _time_left(study, [*running.values(), *todo], finished, at_once)
                arm, seed = todo.pop(0)
                print(f"{arm.name}, seed {seed}: starts; {left}", file=sys.stderr, flush=True)
                command = run_command(arm, seed, study.folder(arm, seed), run_net)
                running[subprocess.Popen(command, stdout=2)] = (arm, seed)  # 2: standard error
            time.sleep(_POLL)
            for process in [process for process in running if process.poll() is not None]:
                arm, seed = running.pop(process)
                folder = study.folder(arm, seed)
                if process.returncode or not (folder / "result.json").is_file():
                    raise RunFailedError(
                        f"{arm.name}, seed {seed}, ended with exit status {process.returncode}; "
                        f"its log is in {folder}. Finished runs are kept: the same command "
                        "continues"
                    )
                finished = study.runs()
                yield finished
    finally:
        # After Ctrl-C they have got it too, and save; this is for those that have not.
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


def _time_left(
    study: Study, runs: Sequence[tuple[Arm, int]], finished: pd.DataFrame, at_once: int
) -> str:
    """Return how long some runs will take, with evaluations and the test.

    Seconds are in proportion to the pixels of all forward and backward passes: by what finished
    runs took, else by step times.
    """
    number = f"{len(runs)} run{'s' if len(runs) > 1 else ''} left"
    training = {arm.name: schedule_cost(arm.schedule, _pixels).flops or 0.0 for arm in study.arms}
    work = {arm.name: training[arm.name] + _evaluation_pixels(arm) for arm in study.arms}
    if len(finished):
        took = finished["total"].sum()
        seconds = took / finished["arm"].map(work).sum() * sum(work[arm.name] for arm, _ in runs)
    elif study.step_seconds:
        seconds = sum(
            study.step_seconds[arm.name] * work[arm.name] / training[arm.name] for arm, _ in runs
        )
    else:
        return number
    return f"{number}, about {format_duration(seconds / min(at_once, len(runs)))}"


def _evaluation_pixels(arm: Arm) -> float:
    """Return the pixels of an arm's evaluations and test; 0 where its lists are not there."""
    recipe = arm.recipe
    validated = count_list(recipe, "val") or 0
    tested = count_list(recipe, "test") or 0
    evaluations = affordable_evaluations(recipe, arm.schedule, validated, _pixels)
    one = evaluation_flops(recipe, arm.schedule, validated, _pixels)
    return len(evaluations) * one + multi_view_flops(recipe, tested, _pixels)


def _pixels(frames: int, crop: int) -> float:
    """Stand in for the training FLOPs of a clip."""
    return frames * crop**2
