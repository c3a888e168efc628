"""Read the finished runs of an experiment, and train the missing runs.

An experiment has one run for each variant and seed.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from slowfast_patches.config.metrics import metric_names
from slowfast_patches.config.recipe import stored_keys
from slowfast_patches.experiments.variants import Variant
from slowfast_patches.plan.run_identity import EXPERIMENT, Identity, differences_between
from slowfast_patches.utils.errors import UserError, mistake_in
from slowfast_patches.utils.files import make_folder, write_text
from slowfast_patches.utils.processes import end_with_parent
from slowfast_patches.utils.signals import handle_signals
from slowfast_patches.utils.tables import Mean, mean_of, shorten_list

ADVICE = "Choose another --output, or delete the folder of that run."
BESIDE = "beside_others.log"
"""File with the output of a run that was trained beside others, in the folder of the run."""
_FAILED = "failed.json"
"""File in the folder of a run whose last attempt failed."""

_COLUMNS = (
    *("variant", "label", "length", "baseline", "seed", "iterations", "epochs", "clips", "flops"),
    *("seconds", "loading", "total", "machine", "versions", "beside", "result"),
)


@dataclass(frozen=True)
class Experiment:
    """Variants that are trained with several seeds.

    Attributes:
        variants: Variants to train.
        seeds: Random seeds. Each variant is trained with each seed.
        output: Folder with a subfolder for each run.
        step_seconds: Maps the name of each variant to the time of all its training steps in
            seconds, computed from step times that were measured separately. Speed-ups are computed
            from these times, or from wall-clock times if this is None.
        accepted: Names of differences that the user accepts: between a finished run and its
            variant, and between the lists and tests of two variants.
        dropped: Maps the name of each variant that cannot be trained to the reason. They are not in
            `variants`.
    """

    variants: Sequence[Variant]
    seeds: Sequence[int]
    output: Path
    step_seconds: Mapping[str, float] | None = None
    accepted: frozenset[str] = frozenset()
    dropped: Mapping[str, str] = field(default_factory=dict)

    def folder(self, variant: Variant, seed: int) -> Path:
        """Return the folder of a run."""
        return self.output / variant.folder / f"seed{seed}"

    def missing(self) -> list[tuple[Variant, int]]:
        """Return the runs without a result, sorted by seed and then by length."""
        variants = sorted(self.variants, key=lambda variant: variant.length)
        runs = [(variant, seed) for seed in self.seeds for variant in variants]
        return [run for run in runs if not (self.folder(*run) / "result.json").is_file()]

    def failed(self) -> dict[tuple[str, int], str]:
        """Return the reason why a run failed, by the name of its variant and its seed."""
        found = dict[tuple[str, int], str]()
        for variant in self.variants:
            for seed in self.seeds:
                folder = self.folder(variant, seed)
                if (folder / _FAILED).is_file() and not (folder / "result.json").is_file():
                    found[variant.name, seed] = (
                        (folder / _FAILED).read_text(encoding="utf-8").strip()
                    )
        return found

    def runs(self) -> pd.DataFrame:
        """Return a table with one row per finished run.

        Returns:
            The columns are:

            - variant: Name of the variant.
            - label, length, baseline: Attributes of the variant.
            - seed: Random seed.
            - iterations, epochs, clips, flops: Totals of the training. FLOPs include forward and
              backward passes.
            - seconds: Wall-clock training time, including data loading. If the run was resumed on
              another machine or with other settings, this and all other times are nan.
            - loading: Share of `seconds` spent waiting for data.
            - total: Sum of `seconds` and the wall-clock time of the evaluations and the test.
            - machine, versions: Hardware and package versions.
            - beside: Whether other runs were trained at the same time on the same machine.
            - result: Content of result.json.
            - One column per metric, in per cent.
            - clock: Time that speed-ups are computed from: `step_seconds` of the variant if given,
              otherwise `seconds`.
            - speed_up, total_speed_up, iteration_factor: `clock`, `total` and `iterations` of the
              baseline, divided by `clock`, `total` and `iterations` of this run. The baseline's run
              has the same seed. The value is nan if that run has not finished. Factors of
              wall-clock times are also nan if the two runs were trained on different machines, or
              if one of them was trained beside others.

        Raises:
            ValueError: A result is damaged, or is from a run with other settings.
        """
        metrics = dict.fromkeys(
            name for variant in self.variants for name in metric_names(variant.recipe)
        )
        rows = [
            _read(path, self, variant, seed)
            for variant in self.variants
            for seed in self.seeds
            if (path := self.folder(variant, seed) / "result.json").is_file()
        ]
        runs = pd.DataFrame(rows, columns=[*_COLUMNS, *metrics])
        times = self.step_seconds
        runs["clock"] = runs["variant"].map(times) if times else runs["seconds"]
        keys = {"left_on": ["baseline", "seed"], "right_on": ["variant", "seed"]}
        both = runs.merge(runs, "left", **keys, suffixes=("", "_of_baseline"))
        factors = {"speed_up": "clock", "total_speed_up": "total", "iteration_factor": "iterations"}
        for factor, column in factors.items():
            runs[factor] = both[f"{column}_of_baseline"] / both[column]
        elsewhere = both["machine"] != both["machine_of_baseline"]
        wall_clock = ["total_speed_up"] if times else ["speed_up", "total_speed_up"]
        apart = both["beside"] | both["beside_of_baseline"].fillna(value=False).astype(bool)
        runs.loc[elsewhere | apart, wall_clock] = math.nan
        return runs


def mean(runs: pd.DataFrame, variant: str, column: str) -> Mean | None:
    """Return the mean of a column over the runs of a variant, or None if no run has finished."""
    return mean_of(map(float, runs.loc[runs["variant"] == variant, column].dropna()))


def run_command(variant: Variant, seed: int, folder: Path, run_net: Path) -> list[str]:
    """Return the command line that trains a variant.

    Args:
        variant: Variant to train.
        seed: Random seed.
        folder: Output folder of the run.
        run_net: Path of the training program, run_net.py.
    """
    command = [sys.executable, str(run_net), "--cfg", str(variant.cfg_file)]
    return [*command, *variant.overrides, "RNG_SEED", str(seed), "OUTPUT_DIR", str(folder)]


def _row(variant: Variant, seed: int, result: Mapping[str, Any]) -> dict[str, Any]:
    seconds = result["seconds"]
    if len(result.get("clocks", ())) > 1:
        seconds = dict.fromkeys(seconds, math.nan)
    training = seconds["training"] + seconds["loading"]
    machine = result["machine"]
    where = f"CPU: {machine['processor']}, {machine['cores']} cores"
    if "threads" in machine:
        where += f", {machine['threads']} threads"
    if machine["gpus"]:
        where = f"{result['world_size']} × {machine['gpus'][0]}"
    return {
        **result,
        "variant": variant.name,
        "label": variant.label,
        "length": variant.length,
        "baseline": variant.baseline,
        "seed": seed,
        "seconds": training,
        "loading": seconds["loading"] / training,
        "total": training + seconds["evaluating"] + seconds.get("testing", 0.0),
        "machine": where,
        "versions": ", ".join(f"{name} {v}" for name, v in result["versions"].items()),
        "result": result,
    }


def _read(path: Path, experiment: Experiment, variant: Variant, seed: int) -> dict[str, Any]:
    wrong = (OSError, ValueError, LookupError, TypeError, AttributeError)
    with mistake_in(f"{path} is not a valid result. To repeat the run, delete the file", *wrong):
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        row = _row(variant, seed, result) | {"beside": (path.parent / BESIDE).is_file()}
        stored = Identity(stored_keys(result["config"]), {})
        if "identity" in result:
            stored = Identity.of_json(result["identity"])
    differing = dict[str, str]()
    if changes := result.get("changes"):
        differing["changes"] = f"changes: {'; '.join(changes)}"
    if "identity" not in result:
        differing["identity"] = "it does not say from which lists, videos and weights"
    planned = result.get("planned_iterations", result["iterations"])  # if a hook ended the run
    if "train_list" not in stored.facts and planned != variant.iterations:
        differing["iterations"] = f"{planned} iterations there, {variant.iterations} here"
    differing |= differences_between(stored, with_seed(variant.identity, seed), EXPERIMENT)
    if texts := [text for name, text in differing.items() if name not in experiment.accepted]:
        options = "".join(f" --accept-change {name}" for name in differing)
        raise UserError(
            f"{path} is the result of a run with other settings than this command has "
            f"({shorten_list(texts, 5)}). {ADVICE} To use the result nevertheless, add{options}."
        )
    return row


def with_seed(identity: Identity, seed: int) -> Identity:
    """Return the identity of the run of a variant with a seed."""
    return replace(identity, keys={**identity.keys, "RNG_SEED": seed})


def train(experiment: Experiment, run_net: Path) -> Iterator[pd.DataFrame]:
    """Train the missing runs of an experiment, one after another. Call `checks.checked` before.

    The output of the runs is printed to standard error. If a run fails, the others are trained
    nevertheless, and `Experiment.failed` has the reason. If this process is interrupted, the
    current run saves a checkpoint before the interruption is raised. If this process is killed, the
    run ends as well.

    Args:
        experiment: Experiment whose missing runs are trained.
        run_net: Path of the training program, run_net.py.

    Yields:
        The table returned by `Experiment.runs`, once before the first training and again after each
        run.

    Raises:
        ValueError: A result is damaged, or is from a run with other settings.
    """
    make_folder(experiment.output, "--output")
    yield experiment.runs()
    todo = experiment.missing()
    for number, (variant, seed) in enumerate(todo, 1):
        name = f"{variant.name}, seed {seed}"
        print(f"Run {number} of {len(todo)}: {name}", file=sys.stderr, flush=True)
        folder = experiment.folder(variant, seed)
        (folder / _FAILED).unlink(missing_ok=True)
        note_failure(folder, name, _run(run_command(variant, seed, folder, run_net)))
        yield experiment.runs()


def note_failure(folder: Path, name: str, process: subprocess.Popen[bytes]) -> None:
    """If the process of a run has ended without a result, write the reason to the run's folder."""
    if process.returncode == 0 and (folder / "result.json").is_file():
        (folder / _FAILED).unlink(missing_ok=True)
        return
    reason = f"exit status {process.returncode}, see the log in {folder}"
    print(f"The run of {name} failed: {reason}", file=sys.stderr, flush=True)
    make_folder(folder)
    write_text(folder / _FAILED, reason + "\n")


def stop_signals() -> list[signal.Signals]:
    """Return the signals that would end this process without running its `finally` blocks."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # as it is after nohup
    return [signal.SIGTERM] if ignored else [signal.SIGTERM, signal.SIGHUP]


def _run(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Run a command, and return its ended process. Its output goes to standard error.

    The command ends with this process, however this process ends.
    """
    with handle_signals(dict.fromkeys(stop_signals(), signal.default_int_handler)):
        process = subprocess.Popen(command, stdout=2, preexec_fn=end_with_parent())
        try:
            process.wait()
            return process
        finally:  # Ctrl-C also reaches the child process, but the other signals do not.
            process.terminate()
            process.wait()
