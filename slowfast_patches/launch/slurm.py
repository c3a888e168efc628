"""SLURM jobs, through submitit, that survive their time limit and preemption.

A job has one task per machine. Each task runs multigrid-train as a child process, which finds its
placement in srun's environment variables. SLURM sends signals to the task, and also to the training
if cgroup.conf has SignalChildrenProcesses=yes. The task then sends SIGUSR1 to its training. All
ranks agree on an iteration, save, and exit with INTERRUPTED_STATUS. On the first machine, submitit
requeues the job with the same number and folder, and SLURM increments SLURM_RESTART_COUNT. A table
in docs/running.md lists the events.
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
"""Subfolder of a run for the files of submitit, such as job logs."""

_KILL_WAIT = 30
"""Seconds between SIGTERM and SIGKILL in SLURM (default of KillWait), also when requeueing."""
_POLL_SECONDS = 0.2
"""Interval at which the training process is polled."""
_SAVED = (INTERRUPTED_STATUS, -signal.SIGTERM, -signal.SIGUSR1)
"""Exit statuses of a training that was asked to stop, or killed by the signal at its start."""


@dataclass(frozen=True)
class Slurm:
    """Resources to request from SLURM.

    Attributes:
        partition: Partition of the job.
        hours: Time limit of a job, after which it is requeued and resumes.
        limit: Maximum number of jobs of an array that run at the same time.
        cpus: Cores for each process.
        requeues: Maximum number of times that a job is requeued because of its time limit.
        warning_seconds: Seconds between the warning and the end of a job. An iteration and a
            checkpoint must fit in them.
        options: Other options of sbatch, such as account.

    Raises:
        ValueError: The warning time is longer than the job or than SLURM supports.
    """

    partition: str
    hours: float = 24.0
    limit: int = 4
    cpus: int = 8
    requeues: int = 50
    warning_seconds: int = 120
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.warning_seconds < 65_536:
            raise ValueError(
                f"a job can be warned 1 to 65535 seconds before its end, not {self.warning_seconds}"
            )
        if self.minutes * 60 <= self.warning_seconds:
            raise ValueError(
                f"a job of {self.hours:g} hours is too short for a warning {self.warning_seconds} "
                "seconds before its end. Give it more hours."
            )

    @property
    def minutes(self) -> int:
        """Time limit of a job in minutes, SLURM's unit."""
        return round(self.hours * 60)


class _Executor(submitit.SlurmExecutor):
    """Executor that also writes batch files on machines without SLURM."""

    @classmethod
    def affinity(cls) -> int:
        return 2


def has_slurm() -> bool:
    """Return whether jobs can be submitted from this machine."""
    return shutil.which("sbatch") is not None


def make_executor(
    folder: Path, slurm: Slurm, machines: int, gpus: int, name: str = "multigrid"
) -> submitit.SlurmExecutor:
    """Return an executor for jobs with one task on each machine.

    Jobs may be requeued even if the default of the cluster is not to. A job that fails on one
    machine ends on all.

    Args:
        folder: Folder for the files of submitit.
        slurm: Resources to request.
        machines: Number of machines of a job.
        gpus: Number of GPUs on each machine.
        name: Name of the jobs.
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
    """Return the text of the batch file of one job."""
    return executor._make_submission_file_text(executor._submitit_command_str, "")


def queue(executor: submitit.SlurmExecutor, jobs: Sequence[Job]) -> list[str]:
    """Submit jobs. Several jobs become one array.

    Returns:
        The job IDs.

    Raises:
        ValueError: SLURM rejects the jobs.
    """
    errors = submitit.core.utils
    try:
        # `map_array` of submitit takes a single function, but each job is a callable of its own.
        with executor.batch():
            queued = [executor.submit(job) for job in jobs]
        return [job.job_id for job in queued]
    except (
        subprocess.CalledProcessError,
        errors.FailedJobError,
        errors.FailedSubmissionError,
    ) as error:
        why = getattr(error, "stderr", None) or error
        raise ValueError(f"sbatch refuses the jobs: {why}") from error


def state_in_queue(number: str) -> str:
    """Return the state of a job as shown by squeue, or "" if it has ended."""
    command = ["squeue", "--noheader", "--format=%T", "--jobs", number]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


@dataclass
class Job:
    """One run as a job, which resumes from the last checkpoint whenever it is started.

    Attributes:
        command: Command line of the training, the same on each machine.
        warning_seconds: Seconds between the warning and the end of the job.
    """

    command: tuple[str, ...]
    warning_seconds: int = Slurm.warning_seconds
    _training: subprocess.Popen[bytes] | None = field(default=None, init=False, compare=False)

    def __call__(self) -> int:
        """Run the training of this machine.

        Returns:
            0, for submitit.

        Raises:
            RuntimeError: The training failed. Its log has the reason.
            SystemExit: The training was interrupted and has saved. It resumes when the job is
                started again.
        """
        warning = _warning_signal()
        for number in {signal.SIGTERM, signal.SIGUSR1} - {warning}:
            signal.signal(number, lambda *_: self._ask_to_save())
        # Only the task handles the warning, even if SLURM also sends it to the training.
        self._training = subprocess.Popen(
            self.command, preexec_fn=lambda: signal.signal(warning, signal.SIG_IGN)
        )
        try:
            status = self._wait()
        finally:
            # If the job is requeued before the training has saved, SLURM would end the training
            # together with this process.
            self._wait(_KILL_WAIT)
        if status in _SAVED:
            _requeue(submitit.JobEnvironment())
        if status:
            raise RuntimeError(f"the training failed with exit status {status}: {self.command}")
        return 0

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """Ask the training to save, and return the job to requeue.

        submitit's signal handler calls this on the first machine while `__call__` waits. If saving
        takes too long, the job is requeued before its time limit, and the training has another
        KillWait seconds. A training that ends by itself in that time ends again when restarted.
        """
        if self._training is not None:
            seconds = max(self.warning_seconds - _KILL_WAIT, self.warning_seconds / 2)
            self._ask_to_save()
            if self._wait(seconds) is None:
                _say(f"not saved within {seconds:.0f} s: will resume from the last checkpoint")
        return submitit.helpers.DelayedSubmission(Job(self.command, self.warning_seconds))

    def _ask_to_save(self) -> None:
        if self._training is not None:
            self._training.send_signal(signal.SIGUSR1)

    def _wait(self, seconds: float = math.inf) -> int | None:
        """Wait for the training. `Popen.wait` could deadlock with a signal handler.

        Returns:
            Its exit status, or minus the number of the signal that killed it, or None if it is
            still running.
        """
        assert self._training is not None, "it has been started"
        deadline = time.monotonic() + seconds
        while (status := self._training.poll()) is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return status


def _warning_signal() -> signal.Signals:
    """Return the signal that submitit asks SLURM to send (SUBMITIT_PREEMPT_SIGNAL)."""
    return signal.Signals[f"SIG{submitit.JobEnvironment.USR_SIG}"]


def _requeue(job: Any) -> None:
    """Requeue a job whose training has saved because of SIGTERM. Does not return.

    The first machine raises the signal at which submitit requeues the job. The other machines end
    without a failure. SLURM would also requeue a cancelled job, so the job must be RUNNING.
    """
    if job.global_rank != 0:
        _say("saved; the first machine requeues the job")
        sys.exit(0)
    state = state_in_queue(job.job_id)
    if state not in ("RUNNING", "SIGNALING"):
        _say(f"saved, but not requeued, because the job is {state or 'unknown to squeue'}")
        sys.exit(1)
    _say("saved; the job is requeued")
    signal.raise_signal(_warning_signal())


def _say(text: str) -> None:
    print(text, flush=True)
