"""Read the finished runs of a study, and train the missing runs.

A study has one run for each arm and seed.
"""

from __future__ import annotations

import json
import os
import signal
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
from slowfast_patches.plan.evaluations import evaluation_share
from slowfast_patches.study.arms import Arm
from slowfast_patches.utils.errors import RunError
from slowfast_patches.utils.signals import handle_signals
from slowfast_patches.utils.tables import Mean, format_duration, mean_of, shorten_list

_POLL = 0.1
"""Seconds between two checks of the training processes."""

_COLUMNS = (
    *("arm", "label", "length", "seed", "iterations", "epochs", "clips", "flops"),
    *("seconds", "loading", "evaluating", "total", "machine", "versions", "result"),
)


_FREE = frozenset(
    (
        *("OUTPUT_DIR", "LOG_PERIOD", "LOG_MODEL_INFO", "DATA_LOADER.NUM_WORKERS"),
        *("TRAIN.CHECKPOINT_PERIOD", "TRAIN.CHECKPOINTS_KEPT"),
        *("DATA.MAX_BAD_FRACTION", "DATA.MAX_READ_SECONDS"),
        *("DIST_JOIN_SECONDS", "DIST_STALL_SECONDS"),
    )
)
"""Keys that may differ from those of a finished run: they change neither the training nor its
score. Messages of failed runs recommend to change some of them. A relative OUTPUT_DIR changes with
the current folder."""


@dataclass(frozen=True)
class Study:
    """Arms that are trained with several seeds.

    Attributes:
        arms: Arms to train.
        seeds: Random seeds. Each arm is trained with each seed.
        output: Folder with a subfolder for each run.
        step_seconds: Maps the name of each arm to the time of all its training steps in seconds,
            computed from step times that were measured separately. Speed-ups are computed from
            these times, or from wall-clock times if this is None.
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
        """Return the runs without a result, sorted by seed and then by length."""
        arms = sorted(self.arms, key=lambda arm: arm.length)
        runs = [(arm, seed) for seed in self.seeds for arm in arms]
        return [run for run in runs if not (self.folder(*run) / "result.json").is_file()]

    def runs(self) -> pd.DataFrame:
        """Return a table with one row per finished run.

        Returns:
            The columns are:

            - arm: Name of the arm.
            - label, length: Attributes of the arm.
            - seed: Random seed.
            - iterations, epochs, clips, flops: Totals of the training. FLOPs include forward and
              backward passes.
            - seconds: Wall-clock training time, including data loading.
            - loading: Share of `seconds` spent waiting for data.
            - evaluating: Wall-clock time of the evaluations and the test.
            - total: Sum of `seconds` and `evaluating`.
            - machine, versions: Hardware and package versions.
            - result: Content of result.json.
            - One column per metric, in per cent.
            - clock: Time that speed-ups are computed from: `step_seconds` of the arm if given,
              otherwise `seconds`.
            - speed_up, total_speed_up, iteration_factor: `clock`, `total` and `iterations` of the
              baseline, divided by `clock`, `total` and `iterations` of this run. The baseline's run
              has the same seed. The value is nan if that run has not finished.

        Raises:
            ValueError: A result is damaged, or its config differs from the arm's config.
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
    """Return the mean of a column over the runs of an arm, or None if no run has finished."""
    return mean_of(map(float, runs.loc[runs["arm"] == arm, column].dropna()))


def run_command(arm: Arm, seed: int, folder: Path, run_net: Path) -> list[str]:
    """Return the command line that trains an arm.

    Args:
        arm: Arm to train.
        seed: Random seed.
        folder: Output folder of the run.
        run_net: Path of the training program, run_net.py.
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
        "machine": where,
        "versions": ", ".join(f"{name} {v}" for name, v in result["versions"].items()),
        "result": result,
        **{name: result.get(name) for name in metrics},
    }


def _read(path: Path, arm: Arm, seed: int) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        stored = stored_keys(result["config"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not a valid result ({error}). Delete the file to repeat the run."
        ) from error
    if changes := result.get("rate_changes"):
        raise ValueError(
            f"{path}: The run was resumed with other learning rates ({changes[0]}). To repeat the "
            "run, delete its folder."
        )
    wanted = values_by_key(arm.recipe) | {"RNG_SEED": seed}
    if differing := differences(stored, wanted, "now", _FREE | arm.open_keys):
        raise ValueError(
            f"{path} was trained with another config ({shorten_list(differing, 5)}). Choose "
            "another --output, or delete the folder of that run."
        )
    if "DATA.PATH_TO_DATA_DIR" not in arm.open_keys and result["iterations"] != arm.iterations:
        raise ValueError(
            f"{path} has {result['iterations']:,} iterations, but the run would now have "
            f"{arm.iterations:,}, because the training list has changed. Restore the list, choose "
            "another --output, or delete the folder of that run."
        )
    return result


def train(study: Study, run_net: Path, at_once: int = 1) -> Generator[pd.DataFrame, None, None]:
    """Train the missing runs of a study.

    The output of the runs and an estimate of the remaining time are printed to standard error. To
    stop early, close the generator. It then asks the running processes to save a checkpoint, and
    waits until they exit.

    Args:
        study: Study whose missing runs are trained.
        run_net: Path of the training program, run_net.py.
        at_once: Maximum number of runs to train at the same time.

    Yields:
        The table returned by `Study.runs`, once before the first training and again after each run.

    Raises:
        ValueError: A result is damaged, or its config differs from the arm's config.
        RunError: A run failed. The results of finished runs are kept.
    """
    finished = study.runs()
    yield finished
    todo = study.missing()
    # Several progress bars would overwrite each other.
    environment = os.environ | {"TQDM_DISABLE": "1"} if at_once > 1 else None
    running = dict[subprocess.Popen[bytes], tuple[Arm, int]]()
    try:
        # SIGTERM would end this process without the `finally` block.
        with handle_signals({signal.SIGTERM: signal.default_int_handler}):
            while todo or running:
                while todo and len(running) < at_once:
                    left = _time_left(study, [*running.values(), *todo], finished, at_once)
                    arm, seed = todo.pop(0)
                    print(f"{arm.name}, seed {seed}: starts; {left}", file=sys.stderr, flush=True)
                    command = run_command(arm, seed, study.folder(arm, seed), run_net)
                    process = subprocess.Popen(command, stdout=2, env=environment)  # 2: stderr
                    running[process] = (arm, seed)
                time.sleep(_POLL)
                for process in [process for process in running if process.poll() is not None]:
                    arm, seed = running.pop(process)
                    folder = study.folder(arm, seed)
                    if process.returncode or not (folder / "result.json").is_file():
                        raise RunError(
                            f"The run of {arm.name}, seed {seed}, ended without a result, with "
                            f"exit status {process.returncode}. See the log in {folder}. To "
                            "continue with the remaining runs, repeat the command."
                        )
                    finished = study.runs()
                    yield finished
    finally:
        # Ctrl-C also reaches the child processes. For other reasons, they must be terminated here.
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


def _time_left(
    study: Study, runs: Sequence[tuple[Arm, int]], finished: pd.DataFrame, at_once: int
) -> str:
    """Return text with the number of remaining runs and an estimate of their time.

    The time includes evaluations and the test. It is assumed to be proportional to the step times
    or, if these are unknown, to the number of training pixels. If runs have finished, the estimate
    is scaled to match their total time.

    Args:
        study: Study that the runs belong to.
        runs: Remaining runs, including the runs in progress.
        finished: Table of the finished runs.
        at_once: Maximum number of runs that train at the same time.
    """
    number = f"{len(runs)} run{'s' if len(runs) > 1 else ''} left"
    if not study.step_seconds and finished.empty:
        return number
    steps = study.step_seconds or {
        arm.name: schedule_cost(arm.schedule, _pixels).flops or 0.0 for arm in study.arms
    }
    work = {arm.name: steps[arm.name] * (1 + share_of_evaluations(arm)) for arm in study.arms}
    seconds = sum(work[arm.name] for arm, _ in runs)
    if len(finished):
        seconds *= finished["total"].sum() / finished["arm"].map(work).sum()
    return f"{number}, about {format_duration(seconds / min(at_once, len(runs)))}"


def share_of_evaluations(arm: Arm) -> float:
    """Return the time of evaluations and test, as a multiple of the training time of a run.

    Time is assumed to be proportional to the number of pixels. Without list files, the result is 0.
    """
    return evaluation_share(arm.recipe, arm.schedule, _pixels)[1]


def _pixels(frames: int, crop: int) -> float:
    """Return the number of pixels of a clip, which replaces its training FLOPs in estimates."""
    return frames * crop**2
