"""Read the finished runs of a study, and train the missing runs.

A study has one run for each arm and seed.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from slowfast_patches.config.metrics import metric_names
from slowfast_patches.config.recipe import differences, stored_keys, values_by_key
from slowfast_patches.study.arms import Arm
from slowfast_patches.utils.errors import RunError, UserError, mistake_in
from slowfast_patches.utils.signals import handle_signals
from slowfast_patches.utils.tables import Mean, mean_of, shorten_list

_COLUMNS = (
    *("arm", "label", "length", "baseline", "seed", "iterations", "epochs", "clips", "flops"),
    *("seconds", "loading", "total", "machine", "versions", "result"),
)

_FREE = frozenset(
    (
        *("OUTPUT_DIR", "LOG_PERIOD", "LOG_MODEL_INFO", "DATA_LOADER.NUM_WORKERS"),
        *("TRAIN.CHECKPOINT_PERIOD", "TRAIN.CHECKPOINTS_KEPT"),
        "DATA.MAX_BAD_FRACTION",
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
            - label, length, baseline: Attributes of the arm.
            - seed: Random seed.
            - iterations, epochs, clips, flops: Totals of the training. FLOPs include forward and
              backward passes.
            - seconds: Wall-clock training time, including data loading.
            - loading: Share of `seconds` spent waiting for data.
            - total: Sum of `seconds` and the wall-clock time of the evaluations and the test.
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
            _row(arm, seed, _read(path, arm, seed))
            for arm in self.arms
            for seed in self.seeds
            if (path := self.folder(arm, seed) / "result.json").is_file()
        ]
        runs = pd.DataFrame(rows, columns=[*_COLUMNS, *metrics])
        times = self.step_seconds
        runs["clock"] = runs["arm"].map(times) if times else runs["seconds"]
        keys = {"left_on": ["baseline", "seed"], "right_on": ["arm", "seed"]}
        both = runs.merge(runs, "left", **keys, suffixes=("", "_of_baseline"))
        factors = {"speed_up": "clock", "total_speed_up": "total", "iteration_factor": "iterations"}
        for factor, column in factors.items():
            runs[factor] = both[f"{column}_of_baseline"] / both[column]
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


def _row(arm: Arm, seed: int, result: Mapping[str, Any]) -> dict[str, Any]:
    seconds = result["seconds"]
    training = seconds["training"] + seconds["loading"]
    machine = result["machine"]
    where = f"CPU: {machine['processor']}, {machine['cores']} cores"
    if machine["gpus"]:
        where = f"{result['world_size']} × {machine['gpus'][0]}"
    return {
        **result,
        "arm": arm.name,
        "label": arm.label,
        "length": arm.length,
        "baseline": arm.baseline,
        "seed": seed,
        "seconds": training,
        "loading": seconds["loading"] / training,
        "total": training + seconds["evaluating"] + seconds.get("testing", 0.0),
        "machine": where,
        "versions": ", ".join(f"{name} {v}" for name, v in result["versions"].items()),
        "result": result,
    }


def _read(path: Path, arm: Arm, seed: int) -> dict[str, Any]:
    wrong = (OSError, ValueError, LookupError, TypeError, AttributeError)
    with mistake_in(f"{path} is not a valid result. To repeat the run, delete the file", *wrong):
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        stored = stored_keys(result["config"])
    wanted = values_by_key(arm.recipe) | {"RNG_SEED": seed}
    differing = list(result.get("rate_changes", ()))
    differing += differences(stored, wanted, _FREE | arm.open_keys).values()
    planned = result.get("planned_iterations", result["iterations"])  # if a hook ended the run
    if "DATA.PATH_TO_DATA_DIR" not in arm.open_keys and planned != arm.iterations:
        differing.append(f"{planned} iterations there, {arm.iterations} here")
    if differing:
        raise UserError(
            f"{path} was trained with another config or list ({shorten_list(differing, 5)}). "
            "Choose another --output, or delete the folder of that run."
        )
    return result


def train(study: Study, run_net: Path) -> Iterator[pd.DataFrame]:
    """Train the missing runs of a study, one after another.

    The output of the runs is printed to standard error. If this process is interrupted, the current
    run saves a checkpoint before the interruption is raised.

    Args:
        study: Study whose missing runs are trained.
        run_net: Path of the training program, run_net.py.

    Yields:
        The table returned by `Study.runs`, once before the first training and again after each run.

    Raises:
        ValueError: A result is damaged, or its config differs from the arm's config.
        RunError: A run failed. The results of finished runs are kept.
    """
    yield study.runs()
    todo = study.missing()
    for number, (arm, seed) in enumerate(todo, 1):
        name = f"{arm.name}, seed {seed}"
        print(f"Run {number} of {len(todo)}: {name}", file=sys.stderr, flush=True)
        folder = study.folder(arm, seed)
        status = _run(run_command(arm, seed, folder, run_net))
        if status or not (folder / "result.json").is_file():
            raise RunError(
                f"The run of {name} ended without a result, with exit status {status}. See the "
                f"log in {folder}. To continue with the remaining runs, repeat the command."
            )
        yield study.runs()


def _run(command: Sequence[str]) -> int:
    """Run a command, and return its exit status. Its output goes to standard error."""
    # By default, SIGTERM would end this process without the `finally` block.
    with handle_signals({signal.SIGTERM: signal.default_int_handler}):
        process = subprocess.Popen(command, stdout=2)  # 2: standard error
        try:
            return process.wait()
        finally:  # Ctrl-C also reaches the child process, but SIGTERM does not.
            process.terminate()
            process.wait()
