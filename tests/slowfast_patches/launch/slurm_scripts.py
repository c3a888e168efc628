"""A SLURM of shell scripts: what submitit and the jobs call, and what SLURM does with a job.

sbatch keeps the batch file, srun starts a task for each machine, all of them here. Signals reach
the tasks alone, as where cgroup.conf leaves SignalChildrenProcesses at "no".
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PATIENCE = 120.0
"""Seconds for what takes one or two on an idle machine."""

_SRUN = f"""#!/bin/sh
while [ "$1" != "{sys.executable}" ]; do shift; done
task=0
while [ $task -lt $SLURM_JOB_NUM_NODES ]; do
  SLURM_PROCID=$task SLURM_NODEID=$task SLURM_LOCALID=0 \\
    "$@" > "$CLUSTER/log_$task" 2>&1 &
  echo $! > "$CLUSTER/started_$task"
  task=$((task + 1))
done
task=0
while [ $task -lt $SLURM_JOB_NUM_NODES ]; do
  wait $(cat "$CLUSTER/started_$task")
  echo $? > "$CLUSTER/status_$task"
  task=$((task + 1))
done
"""


class Cluster:
    """The programs lie in `folder`; `state` sets the state of every job."""

    number = "4242"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.state("RUNNING")
        submitted = f"Submitted batch job {self.number}"
        self._script("sbatch", f'cp "$1" "$CLUSTER/batch"; echo "{submitted}"')
        self._script("scontrol", 'echo "$@" >> "$CLUSTER/scontrol_calls"')
        self._script("squeue", 'grep -v -e COMPLETED -e FAILED "$CLUSTER/state"')
        self._program("srun", _SRUN)
        self.environment = {
            "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
            "CLUSTER": str(folder),
        }
        self._step: subprocess.Popen[bytes] | None = None

    def _script(self, name: str, text: str) -> None:
        self._program(name, f"#!/bin/sh\n{text}\n")

    def _program(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)

    def state(self, name: str) -> None:
        (self.folder / "state").write_text(f"{name}\n")

    @property
    def batch(self) -> str:
        """The batch file that was submitted."""
        return (self.folder / "batch").read_text()

    @property
    def requeued(self) -> list[str]:
        """What scontrol was asked for."""
        path = self.folder / "scontrol_calls"
        return path.read_text().splitlines() if path.exists() else []

    def start(self, machines: int = 1, restarts: int = 0) -> None:
        """Run the batch file, as SLURM does when it is the job's turn."""
        names = [f"here{number}" for number in range(machines)]
        environment = os.environ | self.environment
        environment |= {
            "SLURM_JOB_ID": self.number,
            "SLURM_JOB_NUM_NODES": str(machines),
            "SLURM_JOB_NODELIST": ",".join(names),
            "SLURM_NTASKS": str(machines),
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_NUM_TASKS": str(machines),
            "SLURM_STEP_NUM_NODES": str(machines),
            "SLURM_STEP_NODELIST": "localhost",
        }
        if restarts:
            environment["SLURM_RESTART_COUNT"] = str(restarts)
        self._step = subprocess.Popen(
            ["sh", str(self.folder / "batch")], env=environment, start_new_session=True
        )

    def signal(self, *numbers: signal.Signals, machines: int = 1) -> None:
        """What SLURM sends to a step."""
        for task in range(machines):
            for number in numbers:
                os.kill(int((self.folder / f"started_{task}").read_text()), number)

    def wait(self, seconds: float = PATIENCE) -> list[int]:
        """Exit status of each task, once all have ended."""
        assert self._step is not None
        self._step.wait(seconds)
        return [int(path.read_text()) for path in sorted(self.folder.glob("status_*"))]

    def close(self) -> None:
        """End what a failed test left behind; all of a job is in one process group."""
        if self._step is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._step.pid, signal.SIGKILL)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds."""
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < deadline, f"waited in vain: {what}"
            time.sleep(0.05)

    def log(self, task: int = 0) -> str:
        return (self.folder / f"log_{task}").read_text()
