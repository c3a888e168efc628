"""A training as a SLURM job that survives its time limit and preemption.

A job runs one task a machine, and each task runs tools/run_net.py as a process of its own. SLURM's
signals reach the task, and where cgroup.conf says SignalChildrenProcesses=yes the training as well.
The task tells its training to save with SIGUSR1. The ranks agree on the iteration, save, and every
run_net ends with INTERRUPTED_STATUS; submitit's handler on the first machine then requeues the job
(`scontrol requeue`: the same number and folder, SLURM_RESTART_COUNT one higher).

==============================  ========================  ==========================================
what happens                    what the task gets        what follows
==============================  ========================  ==========================================
the time limit comes near       SIGUSR2, `warning` s      saves, requeues itself; counts as one of
                                before                    the `requeues`; after these it ends failed
preempted, with grace time      SIGCONT, SIGTERM          saves, requeues itself; does not count
the same, and slurm.conf has    SIGCONT, SIGTERM,         the same; counts if it came in the last
send_user_signal                SIGUSR2                   fifth (or ten minutes) of the time
preempted without grace time,   SIGCONT, SIGTERM,         saves if that takes less than KillWait
requeued by SLURM               KillWait (30) s later     (else goes on from its last checkpoint);
                                SIGKILL                   SLURM requeues it
scancel JOB                     the same                  saves if there is time; stays cancelled
scancel --signal=TERM JOB       the signal                saves, requeues itself
(or USR1, USR2)
a machine is lost               nothing, or SIGKILL       SLURM requeues it; from its last
                                                          checkpoint
the training fails              nothing                   the job fails on all machines, and is not
                                                          requeued
==============================  ========================  ==========================================

A task that hears that its training saved without being asked by submitit (SIGTERM) looks at the
job's state: only one that is RUNNING is requeued. SLURM would requeue a cancelled one, too.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import submitit

from slowfast_patches.launch.placement import meeting_port
from slowfast_patches.launch.stopping import INTERRUPTED_STATUS

__all__ = ["WARNING_SECONDS", "Job"]

WARNING_SECONDS = 120
"""Before its end a job is warned: an iteration and the saving of a checkpoint must fit."""

_KILL_WAIT = 30
"""Seconds that SLURM leaves a job after SIGTERM, requeued ones too (KillWait's default)."""
_SAVED = (INTERRUPTED_STATUS, -signal.SIGTERM, -signal.SIGUSR1)
"""How a training ends that was asked to; one that had not begun dies of the signal."""
_LOOK, _REPEAT = 0.2, 2.0
"""Seconds between looks at the training, and between requests to save: one that is still importing
does not hear the first."""


@dataclass
class Job:
    """One run, as a job: trains on, from the last checkpoint, each time it is started.

    command: python, run_net.py and its arguments, for one machine or for each of several.
    warning_seconds: how long before its end the job is warned.
    """

    command: tuple[str, ...]
    warning_seconds: int = WARNING_SECONDS
    _training: _Training | None = field(default=None, init=False, repr=False, compare=False)

    def __call__(self) -> int:
        """Train; on several machines, this one's share of it.

        Raises:
            RuntimeError: the training failed; its log says why.
            SystemExit: it was interrupted, has saved, and goes on when the job is started again.
        """
        job = submitit.JobEnvironment()
        training = _Training()
        for number in {signal.SIGTERM, signal.SIGUSR1} - {_warning_signal()}:
            signal.signal(number, lambda *_: training.ask_to_save())
        training.start(self.command_in(job))
        self._training = training
        try:
            status = training.wait()
        except _EndedError as ended:
            status = ended.status
        finally:
            # Where it is requeued before it has saved: with this process SLURM ends the training.
            training.wait(_KILL_WAIT)
        if status in _SAVED:
            _requeue(job)
        if status:
            raise RuntimeError(f"the training ended with exit status {status}: {self.command}")
        return 0

    def command_in(self, job: Any) -> list[str]:
        """The command in a job of several machines: where they meet, and which of them this is."""
        if job.num_nodes == 1:
            return list(self.command)
        where = f"tcp://{job.hostnames[0]}:{meeting_port(int(job.raw_job_id))}"
        options = ["--init-method", where]
        options += ["--shard-id", str(job.node), "--num-shards", str(job.num_nodes)]
        program, rest = self.command[:2], self.command[2:]
        return [*program, *options, *rest]

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """Save, and say what submitit is to queue: the same again.

        Called by submitit's signal handler on the first machine, while `__call__` waits. Where the
        training takes too long to save, the job is requeued in time without it: SLURM then leaves
        it KillWait seconds more.

        Raises:
            Exception: the training ended by itself meanwhile; for `__call__`.
        """
        if self._training is not None:
            seconds = max(self.warning_seconds - _KILL_WAIT, self.warning_seconds / 2)
            self._training.ask_to_save()
            status = self._training.wait(seconds)
            if status is None:
                _say(f"not saved within {seconds:.0f} s: goes on from its last checkpoint")
            elif status not in _SAVED:
                raise _EndedError(status)
        return submitit.helpers.DelayedSubmission(Job(self.command, self.warning_seconds))


class _EndedError(Exception):
    """Leads from `checkpoint`, in a signal's handler, back to `__call__`, which it interrupted."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class _Training:
    """The process that trains. A signal's handler may wait for it while the program does.

    That is why it is looked at with waitid: `Popen.wait` holds a lock meanwhile, for which a
    handler would wait for ever. WNOWAIT leaves the status for the next look.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._asked: float | None = None

    def start(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, preexec_fn=_ignore_warnings)

    def ask_to_save(self) -> None:
        """Ask, now and, where it is waited for, again until it ends; twice does not matter."""
        self._asked = time.monotonic()
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGUSR1)

    def wait(self, seconds: float = math.inf) -> int | None:
        """The exit status, minus the signal's number if one ended it; None if it still runs then.

        Called again, it gives the same.
        """
        deadline = time.monotonic() + seconds
        while (status := self._status()) is None and time.monotonic() < deadline:
            time.sleep(_LOOK)
            if self._asked is not None and time.monotonic() > self._asked + _REPEAT:
                self.ask_to_save()
        return status

    def _status(self) -> int | None:
        assert self._process is not None, "it has been started"
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _warning_signal() -> signal.Signals:
    """The signal that submitit asks SLURM for (SUBMITIT_PREEMPT_SIGNAL)."""
    return signal.Signals[f"SIG{submitit.JobEnvironment.USR_SIG}"]


def _ignore_warnings() -> None:
    """In the training before it begins, and in what it starts: the warning is for the job, and a
    request to save that comes while it imports must not end it."""
    for number in (_warning_signal(), signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


def _requeue(job: Any) -> None:
    """Requeue a job whose training saved without submitit's asking; does not return.

    On the first machine by the signal at which submitit does so. The others' end is no failure:
    what becomes of the job is decided there.
    """
    if job.global_rank != 0:
        _say("saved; the first machine requeues the job")
        sys.exit(0)
    state = _state(job)
    if state not in ("RUNNING", "SIGNALING"):
        _say(f"saved; not requeued by itself, since the job is {state}")
        sys.exit(1)
    _say("saved; the job is requeued")
    signal.raise_signal(_warning_signal())


def _state(job: Any) -> str:
    """RUNNING, or else what becomes of the job; COMPLETING of a cancelled one, and of one that
    SLURM requeues."""
    if job.cluster != "slurm":
        return "RUNNING"
    command = ["squeue", "--noheader", "--format=%T", "--jobs", job.job_id]
    for _ in range(3):
        asked = subprocess.run(command, capture_output=True, text=True)
        if asked.returncode == 0:
            return next(iter(asked.stdout.split()), "GONE")
        time.sleep(2)
    return f"unknown to squeue ({asked.stderr.strip()})"


def _say(text: str) -> None:
    print(text, flush=True)
