"""Train in SLURM jobs that are requeued and resume after their time limit or a preemption.

A job runs multigrid-train as one task per machine. Before the time limit and at a preemption, SLURM
sends a signal to the tasks. All ranks save a checkpoint at the same iteration, and exit with
INTERRUPTED_STATUS. The batch file then requeues the job. docs/running.md lists all cases.
"""

from __future__ import annotations

import math
import shlex
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.launch.slurm_options import CPUS, HOURS, REQUEUES, WARNING_SECONDS
from slowfast_patches.utils.errors import UserError
from slowfast_patches.utils.interruption import INTERRUPTED_STATUS

FOLDER = "slurm"
"""Name of the subfolder of a run with the logs of its jobs."""
_RESUMABLE = (INTERRUPTED_STATUS, 128 + signal.SIGUSR1, 128 + signal.SIGTERM)
"""Exit statuses of srun after which a training can resume. Those of signals occur if a process is
killed before it has installed its signal handlers."""

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
            flag is empty.

    Raises:
        ValueError: SLURM would not accept the times, or the warning would come too late.
    """

    partition: str
    hours: float = HOURS
    cpus: int = CPUS
    requeues: int = REQUEUES
    warning_seconds: int = WARNING_SECONDS
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
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
