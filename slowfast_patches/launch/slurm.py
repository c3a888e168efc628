"""Train in SLURM jobs that are requeued and resume after their time limit or a preemption.

Jobs are submitted with submitit. A job has one task per machine. Each task runs multigrid-train as
a child process. At a time limit or preemption:

1. SLURM sends a signal to each task. With SignalChildrenProcesses=yes in cgroup.conf, SLURM sends
   the signal to the child processes as well.
2. Each task sends SIGUSR1 to its multigrid-train.
3. All ranks agree on an iteration, save a checkpoint, and exit with INTERRUPTED_STATUS.
4. On the first machine, submitit requeues the job with the same job ID and folder. SLURM increments
   SLURM_RESTART_COUNT.

A table in docs/running.md lists all cases.
"""

from __future__ import annotations

import math
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import submitit

from slowfast_patches.utils.signals import INTERRUPTED_STATUS

FOLDER = "slurm"
"""Name of the subfolder of a run in which submitit writes its files, such as job logs."""

_KILL_WAIT = 30
"""Seconds from SIGTERM to SIGKILL when SLURM ends or requeues a job (default of KillWait)."""
_POLL_SECONDS = 0.2
"""Interval in seconds at which the training process is polled."""
_SAVED = (INTERRUPTED_STATUS, -signal.SIGTERM, -signal.SIGUSR1)
"""Exit statuses after which a training can resume.

A signal kills a training that has not yet installed its signal handlers. The exit status is then
the negative signal number.
"""


@dataclass(frozen=True)
class Slurm:
    """Resources to request from SLURM.

    Attributes:
        partition: Name of the SLURM partition.
        hours: Time limit of a job in hours. At the time limit, the job is requeued and resumes.
        limit: Maximum number of jobs of a job array that run at the same time.
        cpus: Number of CPU cores for each process.
        requeues: Maximum number of times that a job is requeued at its time limit.
        warning_seconds: Seconds before the time limit at which SLURM sends a warning signal. The
            training must finish an iteration and save a checkpoint in this time.
        options: Other options of sbatch by name, such as account.

    Raises:
        ValueError: `warning_seconds` is out of SLURM's range or longer than the job.
    """

    partition: str
    hours: float = 24.0
    limit: int = 4
    cpus: int = 8
    requeues: int = 50
    warning_seconds: int = 120
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.hours < 10_000 or self.cpus < 1:
            raise ValueError(
                f"a job must have at least 1 CPU core and less than 10,000 hours, not {self.cpus} "
                f"and {self.hours:g}."
            )
        if not 0 < self.warning_seconds < 65_536:
            raise ValueError(
                f"the warning time is {self.warning_seconds} seconds, but must be from 1 to 65535."
            )
        if self.minutes * 60 <= self.warning_seconds:
            raise ValueError(
                f"the time limit of a job is {self.hours:g} hours, but must be longer than the "
                f"warning time of {self.warning_seconds} seconds. Give the job more hours."
            )

    @property
    def minutes(self) -> int:
        """Time limit of a job in minutes."""
        return round(self.hours * 60)


class _Executor(submitit.SlurmExecutor):
    """Executor that can write batch files even on a machine without SLURM."""

    @classmethod
    def affinity(cls) -> int:
        return 2


def has_slurm() -> bool:
    """Return whether SLURM jobs can be submitted from this machine."""
    return shutil.which("sbatch") is not None


def make_executor(
    folder: Path, slurm: Slurm, machines: int, gpus: int, name: str = "multigrid"
) -> submitit.SlurmExecutor:
    """Return a submitit executor for jobs with one task on each machine.

    Jobs can be requeued, whatever the cluster's default is. If a task fails, the tasks on all other
    machines are ended.

    Args:
        folder: Folder in which submitit writes its files.
        slurm: Resources to request.
        machines: Number of machines of a job.
        gpus: Number of GPUs on each machine. 0 requests none.
        name: Name of the jobs, as shown by squeue.
    """
    executor = _Executor(folder=folder, max_num_timeout=slurm.requeues)
    executor.update_parameters(
        partition=slurm.partition,
        time=slurm.minutes,
        nodes=machines,
        ntasks_per_node=1,
        cpus_per_task=slurm.cpus * max(1, gpus),
        array_parallelism=slurm.limit,
        job_name=name,
        signal_delay_s=slurm.warning_seconds,
        additional_parameters={"requeue": True, **slurm.options},
        srun_args=["--kill-on-bad-exit=1", "--wait=0"],
        **({"gpus_per_node": gpus} if gpus else {}),
    )
    return executor


def batch_file(executor: submitit.SlurmExecutor) -> str:
    """Return the batch file that would be submitted for one job."""
    return executor._make_submission_file_text(executor._submitit_command_str, "")


def queue(executor: submitit.SlurmExecutor, jobs: Sequence[Job]) -> list[str]:
    """Submit jobs to SLURM. Several jobs are submitted as one job array.

    Returns:
        The job IDs, in the order of `jobs`.

    Raises:
        ValueError: SLURM rejects the jobs.
    """
    errors = submitit.core.utils
    try:
        # submitit's `map_array` takes one function for all jobs, but each `Job` is a callable.
        with executor.batch():
            queued = [executor.submit(job) for job in jobs]
        return [job.job_id for job in queued]
    except (
        subprocess.CalledProcessError,
        errors.FailedJobError,
        errors.FailedSubmissionError,
    ) as error:
        why = getattr(error, "stderr", None) or error
        raise ValueError(f"SLURM rejected the jobs: {why}") from error


def state_in_queue(number: str) -> str:
    """Return the state of a job as shown by squeue, such as "RUNNING".

    Args:
        number: Job ID.

    Returns:
        The state, or "" if the job has ended.
    """
    command = ["squeue", "--noheader", "--format=%T", "--jobs", number]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


@dataclass
class Job:
    """SLURM job that runs one training.

    When the job is started again, the training resumes from the last checkpoint.

    Attributes:
        command: Command line of the training. It is the same on all machines.
        warning_seconds: Seconds from the warning signal to the time limit of the job.
    """

    command: tuple[str, ...]
    warning_seconds: int = Slurm.warning_seconds
    _training: subprocess.Popen[bytes] | None = field(default=None, init=False, compare=False)

    def __call__(self) -> int:
        """Run the training on this machine and wait until it ends.

        Returns:
            0, the result that submitit stores for the job.

        Raises:
            RuntimeError: The training failed. The log of the training tells the reason.
            SystemExit: The training was interrupted and has saved a checkpoint.
        """
        warning = _warning_signal()
        for number in {signal.SIGTERM, signal.SIGUSR1} - {warning}:
            signal.signal(number, lambda *_: self._ask_to_save())
        # SLURM may send the warning signal to this task and to the training. Only the task acts.
        self._training = subprocess.Popen(
            self.command, preexec_fn=lambda: signal.signal(warning, signal.SIG_IGN)
        )
        try:
            status = self._wait()
        finally:
            # Wait while the training saves. SLURM kills the training when this task ends.
            self._wait(_KILL_WAIT)
        if status in _SAVED:
            _requeue(submitit.JobEnvironment())
        if status:
            raise RuntimeError(f"the training failed with exit status {status}: {self.command}")
        return 0

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """Ask the training to save a checkpoint, and return the job to requeue.

        submitit calls this in its handler of the warning signal on the first machine. If the
        checkpoint is not saved in time, the job is requeued anyway, shortly before the time limit.
        The training then has another 30 seconds (KillWait) to save. The job is also requeued if the
        training happens to finish in this time. It then finishes again after the restart.
        """
        if self._training is not None:
            seconds = max(self.warning_seconds - _KILL_WAIT, self.warning_seconds / 2)
            self._ask_to_save()
            if self._wait(seconds) is None:
                _say(
                    f"The training did not save within {seconds:.0f} s. It will resume from its "
                    "last checkpoint."
                )
        return submitit.helpers.DelayedSubmission(Job(self.command, self.warning_seconds))

    def _ask_to_save(self) -> None:
        if self._training is not None:
            self._training.send_signal(signal.SIGUSR1)

    def _wait(self, seconds: float = math.inf) -> int | None:
        """Wait until the training ends, for at most `seconds`.

        Polling is used because `Popen.wait` could deadlock if a signal handler also waits.

        Returns:
            Exit status of the training. If a signal killed the training, this is the negative
            signal number. None if the training is still running.
        """
        assert self._training is not None, "the training has not been started"
        deadline = time.monotonic() + seconds
        while (status := self._training.poll()) is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return status


def _warning_signal() -> signal.Signals:
    """Return the warning signal that submitit requests from SLURM before the time limit."""
    return signal.Signals[f"SIG{submitit.JobEnvironment.USR_SIG}"]


def _requeue(job: Any) -> None:
    """Requeue a job after its training has saved a checkpoint, and exit.

    The first machine raises the warning signal, and submitit's signal handler then requeues the
    job. The other machines exit with status 0. A cancelled job is not requeued. As SLURM would
    allow that, the state of the job is checked first.
    """
    if job.global_rank != 0:
        _say("The training has saved a checkpoint. The first machine requeues the job.")
        sys.exit(0)
    state = state_in_queue(job.job_id)
    if state not in ("RUNNING", "SIGNALING"):
        _say(
            "The training has saved a checkpoint, but the job is not requeued, because "
            f"the job is {state or 'unknown to squeue'}."
        )
        sys.exit(1)
    _say("The training has saved a checkpoint. The job is requeued.")
    signal.raise_signal(_warning_signal())


def _say(text: str) -> None:
    print(text, flush=True)
