"""Runs of a study, one for each arm and seed: read the finished ones, train the others."""

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
from slowfast_patches.config.recipe import differences, stored_keys, values_by_key
from slowfast_patches.datasets.lists.dataset_lists import count_list
from slowfast_patches.plan.evaluations import (
    affordable_evaluations,
    evaluation_flops,
    multi_view_flops,
)
from slowfast_patches.study.arms import Arm
from slowfast_patches.train.result import read_result
from slowfast_patches.utils.command_line import ToolError
from slowfast_patches.utils.tables import Mean, format_duration, mean_of, shorten_list

_POLL = 0.1
"""Seconds between two checks of the training processes."""

_COLUMNS = (
    *("arm", "label", "length", "seed", "iterations", "epochs", "clips", "flops"),
    *("seconds", "loading", "evaluating", "total", "waiting", "machine", "versions", "result"),
)


class RunFailedError(ToolError):
    """Error raised when a training ends without a result."""


@dataclass(frozen=True)
class Study:
    """Arms that are trained with several seeds.

    Attributes:
        arms: the arms.
        seeds: the seeds, each of which every arm is trained with.
        output: folder with a subfolder for each run.
        step_seconds: seconds of a run by name of the arm, from step times that were measured alone.
            Speed-ups follow from them. None means that they follow from wall-clock times.
    """

    arms: Sequence[Arm]
    seeds: Sequence[int]
    output: Path
    step_seconds: Mapping[str, float] | None = None

    @property
    def size(self) -> int:
        """Number of runs."""
        return len(self.arms) * len(self.seeds)

    def folder(self, arm: Arm, seed: int) -> Path:
        """Return the folder of a run."""
        return self.output / arm.folder / f"seed{seed}"

    def missing(self) -> list[tuple[Arm, int]]:
        """Return the runs without a result, ordered by seed, then by length."""
        arms = sorted(self.arms, key=lambda arm: arm.length)
        runs = [(arm, seed) for seed in self.seeds for arm in arms]
        return [run for run in runs if not (self.folder(*run) / "result.json").is_file()]

    def runs(self) -> pd.DataFrame:
        """Return the finished runs as a table with a row for each.

        Returns:
            The columns are:

            - arm, label, length: as in `Arm`.
            - seed: the seed.
            - iterations, epochs, clips, flops: totals of training. FLOPs are those of forward and
              backward.
            - seconds: wall-clock time of training, including loading.
            - loading: share of that time spent waiting for data.
            - evaluating: wall-clock time of the evaluations and the test.
            - total: the sum of both.
            - waiting: share of training spent waiting for a core, for one process on the CPU.
            - machine, versions: hardware and package versions.
            - result: content of result.json.
            - a column for each metric, in per cent.
            - clock: the time behind speed-ups, from `step_seconds` or else `seconds`.
            - speed_up, total_speed_up, iteration_factor: `clock`, `total` and `iterations` of the
              baseline's run with the same seed, divided by those of this run. They are nan until
              the baseline's run has finished.

        Raises:
            ValueError: A result is damaged, or belongs to another config than the arm's.
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


def mean(runs: pd.DataFrame, arm: str, column: str) -> Mean | None:
    """Return the mean over seeds of a column, or None if the arm has no finished run."""
    return mean_of(map(float, runs.loc[runs["arm"] == arm, column].dropna()))


def run_command(arm: Arm, seed: int, folder: Path, run_net: Path) -> list[str]:
    """Return the command line that trains an arm.

    Args:
        arm: the arm.
        seed: its seed.
        folder: where to write the run.
        run_net: the training program.
    """
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
        "loading": seconds["loading"] / training,
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
        raise ValueError(
            f"{path} is not the result of a run ({error}). Remove it to train that run again."
        ) from error
    if changes := result.get("rate_changes"):
        raise ValueError(
            f"{path}: trained with several learning rates ({changes[0]}). Remove that run to train "
            "it again."
        )
    wanted = values_by_key(arm.recipe) | {"RNG_SEED": seed}
    # The same run has another path when the command starts in another folder.
    if differing := differences(stored, wanted, "now", {"OUTPUT_DIR", *arm.open_keys}):
        raise ValueError(
            f"{path} is of another config ({shorten_list(differing, 5)}). Choose another --output, "
            "or remove that run."
        )
    return result


def train(study: Study, run_net: Path, at_once: int = 1) -> Generator[pd.DataFrame, None, None]:
    """Train the missing runs of a study.

    Output of the runs and an estimate of the remaining time go to standard error. Close the
    generator to stop: it tells running processes to save, and waits for them.

    Args:
        study: the study.
        run_net: training program, which is started for each run.
        at_once: number of runs that train side by side.

    Yields:
        The table of finished runs, before the first training and after each.

    Raises:
        ValueError: As for `Study.runs`, before anything is trained.
        RunFailedError: A run failed. Finished runs are kept.
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
                        f"{arm.name}, seed {seed}, ended with exit status {process.returncode}. "
                        f"Its log is in {folder}. Finished runs are kept. To continue, repeat the "
                        "command."
                    )
                finished = study.runs()
                yield finished
    finally:
        # Ctrl-C reaches the processes by itself. This is for all other reasons to stop.
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


def _time_left(
    study: Study, runs: Sequence[tuple[Arm, int]], finished: pd.DataFrame, at_once: int
) -> str:
    """Return how long some runs will take, including evaluations and the test.

    Times are assumed to be proportional to step times, or else to the pixels of all forward and
    backward passes. Finished runs calibrate them.
    """
    number = f"{len(runs)} run{'s' if len(runs) > 1 else ''} left"
    steps = study.step_seconds or {arm.name: _training_pixels(arm) for arm in study.arms}
    work = {arm.name: steps[arm.name] * (1 + evaluation_share(arm)) for arm in study.arms}
    seconds = sum(work[arm.name] for arm, _ in runs)
    if len(finished):
        seconds *= finished["total"].sum() / finished["arm"].map(work).sum()
    elif not study.step_seconds:
        return number
    return f"{number}, about {format_duration(seconds / min(at_once, len(runs)))}"


def evaluation_share(arm: Arm) -> float:
    """Return the time of an arm's evaluations and test relative to that of its training steps.

    Times are assumed to be proportional to pixels. Without lists the result is 0.
    """
    recipe = arm.recipe
    validated = count_list(recipe, "val") or 0
    tested = count_list(recipe, "test") or 0
    evaluations = affordable_evaluations(recipe, arm.schedule, validated, _pixels)
    one = evaluation_flops(recipe, arm.schedule, validated, _pixels)
    pixels = len(evaluations) * one + multi_view_flops(recipe, tested, _pixels)
    return pixels / _training_pixels(arm)


def _training_pixels(arm: Arm) -> float:
    return schedule_cost(arm.schedule, _pixels).flops or 0.0


def _pixels(frames: int, crop: int) -> float:
    """Return the pixels of a clip, a substitute for its training FLOPs."""
    return frames * crop**2
