"""What SLURM is asked for, through submitit, and what it says of jobs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import submitit

from slowfast_patches.launch.slurm_job import WARNING_SECONDS, Job

__all__ = ["FOLDER", "Slurm", "batch_file", "has_slurm", "is_queued", "make_executor", "queue"]

FOLDER = "slurm"
"""Beside a run's files: what submitit writes, logs of the jobs among it."""

_ALIVE = {
    *("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING"),
    *("REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SIGNALING", "STAGE_OUT"),
}
"""States of SLURM's jobs that have not ended."""

_OWN = {
    *("array", "cpus-per-task", "error", "gpus-per-node", "job-name", "nodes", "ntasks"),
    *("ntasks-per-node", "output", "partition", "requeue", "signal", "time"),
}
"""Options of sbatch that are set here."""


@dataclass(frozen=True)
class Slurm:
    """What SLURM is asked for.

    hours: of one job, after which it is requeued and goes on, `requeues` times at most.
    limit: jobs of an array that run at the same time.
    cpus: cores for each process.
    warning_seconds: before its end a job is told to save.
    options: further options of sbatch, such as account.

    Raises:
        ValueError: a job would end before it is warned, or an option is set by something else.
    """

    partition: str
    hours: float = 24.0
    limit: int = 4
    cpus: int = 8
    requeues: int = 50
    warning_seconds: int = WARNING_SECONDS
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.warning_seconds < 65_536:
            raise ValueError(f"{self.warning_seconds} seconds of warning; from 1 to 65535 work")
        if self.minutes * 60 <= self.warning_seconds:
            raise ValueError(
                f"a job of {self.hours:g} hours would end before its warning, "
                f"{self.warning_seconds} seconds before the end; give it more hours"
            )
        for name in self.options:
            if name.replace("_", "-") in _OWN:
                raise ValueError(
                    f"{name} is no further option of sbatch: it is fixed, or has an option of its "
                    "own here (gres or constraint choose a kind of GPU)"
                )

    @property
    def minutes(self) -> int:
        """Of one job, as SLURM counts."""
        return round(self.hours * 60)


class _Executor(submitit.SlurmExecutor):
    """Writes batch files without SLURM as well; what needs it asks `has_slurm` first."""

    @classmethod
    def affinity(cls) -> int:
        return 2


def has_slurm() -> bool:
    """Whether jobs can be queued on this machine."""
    return shutil.which("sbatch") is not None


def make_executor(
    folder: Path, slurm: Slurm, machines: int, gpus: int, name: str = "multigrid"
) -> submitit.SlurmExecutor:
    """Asks for `machines` machines of `gpus` GPUs, one task on each; its files go to `folder`.

    A job is requeued where the cluster would not do so by default, and ends on all machines when it
    fails on one.
    """
    executor = _Executor(folder=folder, max_num_timeout=slurm.requeues)
    parameters: dict[str, Any] = {
        "partition": slurm.partition,
        "time": slurm.minutes,
        "nodes": machines,
        "ntasks_per_node": 1,
        "cpus_per_task": slurm.cpus * max(1, gpus),
        "array_parallelism": slurm.limit,
        "job_name": name,
        "signal_delay_s": slurm.warning_seconds,
        "additional_parameters": {"requeue": True, **slurm.options},
        "srun_args": ["--kill-on-bad-exit=1", "--wait=0"],
    }
    if gpus:
        parameters["gpus_per_node"] = gpus
    executor.update_parameters(**parameters)
    return executor


def batch_file(executor: submitit.SlurmExecutor) -> str:
    """What sbatch would be given for one job."""
    return executor._make_submission_file_text(executor._submitit_command_str, "")


def queue(executor: submitit.SlurmExecutor, jobs: Sequence[Job]) -> list[str]:
    """Queue jobs, several as one array; their numbers.

    Raises:
        ValueError: SLURM refuses them; says why.
    """
    try:
        # Callables of their own: submitit's `map_array` takes one function.
        with executor.batch():
            queued = [executor.submit(job) for job in jobs]
        return [job.job_id for job in queued]
    except subprocess.CalledProcessError as error:
        raise ValueError(f"sbatch refuses the jobs: {error.stderr or error}") from error
    except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
        raise ValueError(f"sbatch refuses the jobs: {error}") from error


def is_queued(folder: Path, number: str) -> bool:
    """Whether a job waits or runs, as the accounting says, or else the queue.

    `folder` is that of the executor that queued it.
    """
    state = submitit.SlurmJob(folder, number).state.upper()
    if state == "UNKNOWN":
        command = ["squeue", "--noheader", "--jobs", number]
        return bool(subprocess.run(command, capture_output=True, text=True).stdout.strip())
    return state in _ALIVE
