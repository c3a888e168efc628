"""Runs as SLURM jobs, through submitit, that survive their time limit and preemption.

A job runs one task a machine, and each task runs multigrid-train as a process of its own, which
finds by srun's variables where it is. SLURM's signals reach the task (and the training too, where
cgroup.conf says SignalChildrenProcesses=yes); the task asks its training to save with SIGUSR1. The
ranks agree on the iteration, save, and every run_net ends with INTERRUPTED_STATUS. submitit's
handler on the first machine then requeues the job: the same number and folder, SLURM_RESTART_COUNT
one higher. What follows what is a table in docs/running.md.
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

__all__ = [
    "FOLDER",
    "Job",
    "Slurm",
    "batch_file",
    "has_slurm",
    "make_executor",
    "queue",
    "state_in_queue",
]

FOLDER = "slurm"
"""Beside a run's files: what submitit writes, logs of the jobs among it."""

_KILL_WAIT = 30
"""Seconds that SLURM leaves a job after SIGTERM, requeued ones too (KillWait's default)."""
_LOOK = 0.2
"""Seconds between looks at the training."""
_SAVED = (INTERRUPTED_STATUS, -signal.SIGTERM, -signal.SIGUSR1)
"""How a training ends that was asked to; one that had not begun dies of the signal."""


@dataclass(frozen=True)
class Slurm:
    """What SLURM is asked for.

    hours: of one job, after which it is requeued and goes on, `requeues` times at most.
    limit: jobs of an array that run at the same time.
    cpus: cores for each process.
    warning_seconds: time left when a job is warned: an iteration and a checkpoint must fit.
    options: further options of sbatch, such as account.

    Raises:
        ValueError: a job would end before it is warned, or SLURM cannot warn so long before.
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
            raise ValueError(f"{self.warning_seconds} seconds of warning; from 1 to 65535 work")
        if self.minutes * 60 <= self.warning_seconds:
            raise ValueError(
                f"a job of {self.hours:g} hours would end before its warning, "
                f"{self.warning_seconds} seconds before the end; give it more hours"
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
    """The batch file of one job."""
    return executor._make_submission_file_text(executor._submitit_command_str, "")


def queue(executor: submitit.SlurmExecutor, jobs: Sequence[Job]) -> list[str]:
    """Queue jobs, several as one array; their numbers.

    Raises:
        ValueError: SLURM refuses them; says why.
    """
    errors = submitit.core.utils
    try:
        # Callables of their own: submitit's `map_array` takes one function.
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
    """What a job that waits or runs does, as squeue has it; "" of one that has ended."""
    command = ["squeue", "--noheader", "--format=%T", "--jobs", number]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


@dataclass
class Job:
    """One run, as a job: trains on, from the last checkpoint, each time it is started.

    command: python, run_net.py and its arguments, the same on each machine.
    warning_seconds: how long before its end the job is warned.
    """

    command: tuple[str, ...]
    warning_seconds: int = Slurm.warning_seconds
    _training: subprocess.Popen[bytes] | None = field(default=None, init=False, compare=False)

    def __call__(self) -> int:
        """Train; on several machines, this one's share of it.

        Raises:
            RuntimeError: the training failed; its log says why.
            SystemExit: it was interrupted, has saved, and goes on when the job is started again.
        """
        warning = _warning_signal()
        for number in {signal.SIGTERM, signal.SIGUSR1} - {warning}:
            signal.signal(number, lambda *_: self._ask_to_save())
        # The warning is for the task alone, though it may be sent to all.
        self._training = subprocess.Popen(
            self.command, preexec_fn=lambda: signal.signal(warning, signal.SIG_IGN)
        )
        try:
            status = self._wait()
        finally:
            # Where it is requeued before it has saved: with this process SLURM ends the training.
            self._wait(_KILL_WAIT)
        if status in _SAVED:
            _requeue(submitit.JobEnvironment())
        if status:
            raise RuntimeError(f"the training ended with exit status {status}: {self.command}")
        return 0

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """Save, and say what submitit is to queue: the same again.

        Called by submitit's signal handler on the first machine, while `__call__` waits. Where the
        training takes too long to save, the job is requeued in time without it: SLURM then leaves
        it KillWait seconds more. One that just ends by itself does so again when started again.
        """
        if self._training is not None:
            seconds = max(self.warning_seconds - _KILL_WAIT, self.warning_seconds / 2)
            self._ask_to_save()
            if self._wait(seconds) is None:
                _say(f"not saved within {seconds:.0f} s: goes on from its last checkpoint")
        return submitit.helpers.DelayedSubmission(Job(self.command, self.warning_seconds))

    def _ask_to_save(self) -> None:
        if self._training is not None:
            self._training.send_signal(signal.SIGUSR1)

    def _wait(self, seconds: float = math.inf) -> int | None:
        """The training's exit status, minus the signal's number if one ended it; None if it still
        runs then. A signal's handler may wait while the program does; `Popen.wait` would deadlock.
        """
        assert self._training is not None, "it has been started"
        deadline = time.monotonic() + seconds
        while (status := self._training.poll()) is None and time.monotonic() < deadline:
            time.sleep(_LOOK)
        return status


def _warning_signal() -> signal.Signals:
    """The signal that submitit asks SLURM for (SUBMITIT_PREEMPT_SIGNAL)."""
    return signal.Signals[f"SIG{submitit.JobEnvironment.USR_SIG}"]


def _requeue(job: Any) -> None:
    """Requeue a job whose training saved without submitit's asking (SIGTERM); does not return.

    On the first machine by the signal at which submitit does so. The others' end is no failure:
    what becomes of the job is decided there. SLURM would requeue a cancelled job as well: only one
    that is RUNNING is requeued.
    """
    if job.global_rank != 0:
        _say("saved; the first machine requeues the job")
        sys.exit(0)
    state = state_in_queue(job.job_id)
    if state not in ("RUNNING", "SIGNALING"):
        _say(f"saved; not requeued by itself, since the job is {state or 'unknown to squeue'}")
        sys.exit(1)
    _say("saved; the job is requeued")
    signal.raise_signal(_warning_signal())


def _say(text: str) -> None:
    print(text, flush=True)
