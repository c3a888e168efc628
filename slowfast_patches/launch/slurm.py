"""Train in SLURM jobs that are requeued and resume after their time limit or a preemption.

A job runs multigrid-train as one task per machine. Before the time limit and at a preemption, SLURM
sends a signal to the tasks. All ranks save a checkpoint at the same iteration, and exit with
INTERRUPTED_STATUS. The batch file then requeues the job. docs/running.md lists all cases.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.launch.slurm_options import CPUS, HOURS, OPTIONS, REQUEUES, WARNING_SECONDS
from slowfast_patches.utils.command_line import option_of
from slowfast_patches.utils.errors import UserError, mistake_in
from slowfast_patches.utils.files import make_folder, write_text
from slowfast_patches.utils.interruption import INTERRUPTED_STATUS

FOLDER = "slurm"
"""Name of the subfolder of a run with the logs of its jobs."""
_JOBS = "jobs.json"
"""Name of the file with the job IDs, in the folder of the logs."""
_RESUMABLE = (INTERRUPTED_STATUS, 128 + signal.SIGUSR1, 128 + signal.SIGTERM)
"""Exit statuses of srun after which a training can resume. Those of signals occur if a process is
killed before it has installed its signal handlers."""

_OWNERS = {
    "partition": "the option for the partition",
    "time": "--hours",
    "signal": "--warning-seconds",
    "nodes": "NUM_SHARDS",
    "ntasks": "NUM_SHARDS",
    "ntasks-per-node": "NUM_SHARDS, with one task per machine",
    "cpus-per-task": "--cpus",
    "requeue": "--requeues",
    "no-requeue": "--requeues 0",
    "open-mode": "nothing, because all parts of a run append to one log",
}
"""Options of sbatch that a job depends on, with what sets their values."""

_EARLY_SECONDS = 60
"""SLURM may send the warning of sbatch's --signal so many seconds too early."""
_LEFT_SECONDS = _EARLY_SECONDS + 60
"""Minimum difference between the time limit and the warning time."""

# After a task has failed, srun lets the other tasks end by themselves for 60 s.
# With --kill-on-bad-exit=1, it would send them SIGTERM, so they would seem to be interrupted.
_BATCH_FILE = """\
#!/bin/bash
{directives}
srun --wait=60 --kill-on-bad-exit=0 --cpus-per-task="$SLURM_CPUS_PER_TASK" {command}
status=$?
case $status in {resumable})
    if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {requeues} ]; then
        scontrol requeue "$SLURM_JOB_ID"
    else
        echo "The job has been restarted {requeues} times. To resume it, submit it again."
    fi
esac
exit $status
"""


@dataclass(frozen=True)
class Slurm:
    """Resources to request from SLURM.

    Attributes:
        partition: Name of the SLURM partition.
        hours: Time limit of a job in hours. At the time limit, the job is requeued and resumes.
        cpus: Number of CPU cores for each process.
        requeues: Maximum number of times that a job requeues itself.
        warning_seconds: Seconds before the time limit at which SLURM sends a warning signal. The
            training must finish an iteration and save a checkpoint in this time.
        options: Other options of sbatch by name, such as account or job-name. The value of a
            flag is empty. Options that other attributes or the recipe set are not allowed.

    Raises:
        ValueError: SLURM would not accept the times, the warning would come too late, or
            `options` has an option that is set in another way.
    """

    partition: str
    hours: float = HOURS
    cpus: int = CPUS
    requeues: int = REQUEUES
    warning_seconds: int = WARNING_SECONDS
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.options:
            if owner := _OWNERS.get(name.lstrip("-")):
                raise UserError(
                    f"--option {name} is not allowed, because the job depends on its value, which "
                    f"is set by {owner}"
                )
        seconds = self.hours * 3600
        if not (0 < self.warning_seconds < min(65_536, seconds) and self.hours < 10_000):
            raise UserError(
                f"the time limit of a job is {self.hours:g} hours, and the warning time is "
                f"{self.warning_seconds} seconds. The warning time must be from 1 to 65535 "
                "seconds, and shorter than the time limit."
            )
        if 60 * self.minutes - self.warning_seconds < _LEFT_SECONDS:
            raise UserError(
                f"the time limit of a job is {self.minutes} minutes, and the warning time is "
                f"{self.warning_seconds} seconds. SLURM may send the warning {_EARLY_SECONDS} "
                "seconds too early, so the job would have less than a minute to train. Set --hours "
                f"to {(self.warning_seconds + _LEFT_SECONDS) / 3600:.3f} or more, or reduce "
                "--warning-seconds."
            )
        if self.cpus < 1 or self.requeues < 0:
            raise UserError(
                f"a process has {self.cpus} CPU cores, and a job requeues itself {self.requeues} "
                "times. A process needs 1 core or more. The number of restarts must be 0 or more."
            )

    @property
    def minutes(self) -> int:
        """Time limit in whole minutes, as SLURM counts. It is rounded up, because 0 is no limit."""
        return math.ceil(round(self.hours * 60, 6))


def slurm_of(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Slurm | None:
    """Return the resources that the options request, or None without a partition."""
    names = (*OPTIONS, "options")
    given = {name: value for name in names if (value := getattr(args, name)) is not None}
    if args.partition is not None and not args.partition.strip():
        parser.error("the name of the partition is empty")
    if args.partition is None:
        if given:
            parser.error(f"{option_of(next(iter(given)))} has no effect without --slurm")
        return None
    return Slurm(args.partition, **given | {"options": dict(args.options or ())})


def batch_file(command: Sequence[str], recipe: Recipe, slurm: Slurm, logs: Path) -> str:
    """Return the batch file of a job.

    Args:
        command: Command line of the training. It is the same on all machines.
        recipe: Recipe with the numbers of machines and of GPUs per machine.
        slurm: Resources to request. Its `options` replace other options.
        logs: Folder of the logs.
    """
    options = {
        "job-name": "multigrid",
        "partition": slurm.partition,
        "time": slurm.minutes,
        "nodes": recipe.num_shards,
        "ntasks-per-node": 1,
        "cpus-per-task": slurm.cpus * max(1, recipe.num_gpus),
        "signal": f"USR1@{slurm.warning_seconds}",
        "requeue": "",
        "open-mode": "append",
        "output": f"{logs.resolve()}/".replace("%", "%%") + "%j.out",
        **({"gpus-per-node": recipe.num_gpus} if recipe.num_gpus else {}),
    }
    directives = [
        f"#SBATCH --{name}" + (f"={shlex.quote(str(value))}" if value != "" else "")
        for name, value in {**options, **slurm.options}.items()
    ]
    return _BATCH_FILE.format(
        directives="\n".join(directives),
        command=shlex.join(command),
        resumable="|".join(map(str, _RESUMABLE)),
        requeues=slurm.requeues,
    )


def submit(
    runs: Mapping[str, tuple[Recipe, Sequence[str]]], folder: Path, slurm: Slurm
) -> dict[str, str]:
    """Submit a job for each run that has no queued or running job, and store the job IDs.

    Args:
        runs: Maps the name of each run to its recipe and its command line.
        folder: Folder to store the job IDs and the logs in.
        slurm: Resources to request.

    Returns:
        Maps the name of each submitted run to its job ID.

    Raises:
        ValueError: SLURM is missing or rejects a job, or a run has a job with another command.
    """
    if shutil.which("sbatch") is None:
        raise UserError(
            "This machine has no SLURM (no sbatch). To train without SLURM, use multigrid-train, "
            "multigrid-compare without --slurm or multigrid-reproduce --local."
        )
    logs = folder / FOLDER
    path = logs / _JOBS
    wrong = (OSError, ValueError, TypeError, AttributeError)
    with mistake_in(f"{path} is damaged. Delete it if no job is queued", *wrong):
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        known = {name: [str(job), str(command)] for name, (job, command) in content.items()}
    active = _run("squeue", "--all", "--noheader", "-o%i").split() if known else []
    missing = [path for path in (logs, *logs.parents) if not path.exists()]
    make_folder(logs)  # SLURM does not create the folder of a log.
    # If this process runs in a job, sbatch would pass the variables of this job to the new job.
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name == "SLURM_CONF" or not name.startswith("SLURM_")
    }
    commands = {name: shlex.join(command) for name, (_, command) in runs.items()}
    waiting = {name: job for name in runs if (job := known.get(name, [""])[0]) in active}
    for name, job in waiting.items():
        if known[name][1] != commands[name]:
            raise UserError(
                f"Job {job} of {name} is queued or running with another command: {known[name][1]}. "
                f"Cancel it (scancel {job}), or give the same command."
            )
    queued = dict[str, str]()
    try:
        for name, (recipe, command) in runs.items():
            if name not in waiting:
                text = batch_file(command, recipe, slurm, logs)
                said = _run("sbatch", "--parsable", input=text, env=inherited)
                queued[name] = said.split()[-1].partition(";")[0]  # "ID" or "ID;CLUSTER"
                known[name] = [queued[name], commands[name]]
                write_text(path, json.dumps(known))
    finally:
        if not queued:
            with suppress(OSError):  # another process may have written to the folder
                for empty in missing:
                    empty.rmdir()
    return queued


def _run(*command: str, **options: Any) -> str:
    """Run a command of SLURM, and return its output."""
    with mistake_in(f"SLURM's {command[0]} cannot be started"):
        done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode:
        raise UserError(f"SLURM's {command[0]} failed: {done.stderr.strip()}")
    return str(done.stdout)
