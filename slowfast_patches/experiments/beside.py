"""Train the missing runs of an experiment at the same time, with one progress bar for all of them.

Runs that share a machine slow each other down, so their wall-clock times cannot be compared.
Speed-ups of such an experiment are computed from step times that were measured alone.

The longest run of a seed starts first and has priority over the others, because the experiment
takes at least as long as this run does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from slowfast_patches.experiments.runs import (
    BESIDE,
    Experiment,
    note_failure,
    run_command,
    stop_signals,
)
from slowfast_patches.experiments.variants import Variant
from slowfast_patches.utils.clock import format_duration
from slowfast_patches.utils.files import make_folder
from slowfast_patches.utils.processes import end_with_parent
from slowfast_patches.utils.signals import handle_signals

_PERIOD = 0.5
"""Seconds between two looks at the runs."""
_TAIL = 1 << 14
"""Bytes at the end of metrics.jsonl that have its last complete line."""
_NICER, _NICEST = 5, 10
"""By how much each run is nicer to other processes than the run before it, and at most.

Each step of niceness is worth about a quarter of the time of a core.
"""
_OVERHEAD = 1.3
"""Estimated time of a run divided by the time of its steps: loading, evaluation and start."""


def train_beside(experiment: Experiment, run_net: Path, jobs: int) -> Iterator[pd.DataFrame]:
    """Train the missing runs of an experiment, at most `jobs` at a time.

    The output of a run goes to the file `runs.BESIDE` in its folder. All else is as in
    `runs.train`.

    Args:
        experiment: Experiment whose missing runs are trained. It has step times.
        run_net: Path of the training program, run_net.py.
        jobs: Number of runs to train at the same time.

    Yields:
        The table returned by `Experiment.runs`, once before the first training and again after each
        run.

    Raises:
        ValueError: A result is damaged, or is from a run with other settings.
    """
    yield experiment.runs()
    waiting = _longest_first(experiment)
    if waiting:
        print(_announcement(experiment, waiting, jobs), file=sys.stderr, flush=True)
    running = dict[subprocess.Popen[bytes], tuple[Variant, int]]()
    total = sum(variant.iterations for variant, _ in waiting)
    started = list[tuple[Variant, int]]()
    with (
        handle_signals(dict.fromkeys(stop_signals(), signal.default_int_handler)),
        tqdm(total=total, unit="iteration", desc="all runs", dynamic_ncols=True) as bar,
    ):
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    run = waiting.pop(0)
                    started.append(run)
                    nicer = min(_NICEST, _NICER * (len(started) - 1))
                    running[_start(experiment, *run, run_net, nicer)] = run
                time.sleep(_PERIOD)
                bar.update(sum(_iterations(experiment.folder(*run)) for run in started) - bar.n)
                for process in [process for process in running if process.poll() is not None]:
                    variant, seed = running.pop(process)
                    note_failure(
                        experiment.folder(variant, seed), f"{variant.name}, seed {seed}", process
                    )
                    yield experiment.runs()
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait()


def _longest_first(experiment: Experiment) -> list[tuple[Variant, int]]:
    """Return the missing runs, seed by seed, with the longest run of each seed first."""
    assert experiment.step_seconds is not None, "Runs beside each other need step times."
    seconds, seeds = experiment.step_seconds, list(experiment.seeds)
    return sorted(
        experiment.missing(), key=lambda run: (seeds.index(run[1]), -seconds[run[0].name])
    )


def _announcement(experiment: Experiment, runs: Sequence[tuple[Variant, int]], jobs: int) -> str:
    """Return a message with the number of runs and the estimated time."""
    assert experiment.step_seconds is not None
    seconds = [experiment.step_seconds[variant.name] for variant, _ in runs]
    cores = os.cpu_count() or 1
    least = max(max(seconds), sum(seconds) / min(jobs, cores)) * _OVERHEAD
    return f"{len(runs)} runs, {jobs} at a time: about {format_duration(least)}"


def _start(
    experiment: Experiment, variant: Variant, seed: int, run_net: Path, nicer: int
) -> subprocess.Popen[bytes]:
    """Start a run, which ends with this process, however this process ends.

    Args:
        experiment: The experiment.
        variant: Variant to train.
        seed: Random seed.
        run_net: Path of the training program, run_net.py.
        nicer: Increment of the nice value of the run and its workers.
    """
    folder = experiment.folder(variant, seed)
    make_folder(folder)
    end = end_with_parent()

    def prepare() -> None:
        os.nice(nicer)
        if end:
            end()

    with (folder / BESIDE).open("wb") as output:
        return subprocess.Popen(
            run_command(variant, seed, folder, run_net),
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TQDM_DISABLE": "1"},
            preexec_fn=prepare,
        )


def _iterations(folder: Path) -> int:
    """Return the number of finished iterations of a run, according to its metrics.jsonl."""
    with suppress(OSError), (folder / "metrics.jsonl").open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
        for line in reversed(file.read().splitlines()):
            with suppress(ValueError, LookupError, TypeError):
                return int(json.loads(line)["iteration"])
    return 0
