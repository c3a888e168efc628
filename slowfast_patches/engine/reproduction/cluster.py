"""Runs as SLURM jobs, through submitit: a job each, in arrays, requeued when their time is up."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import submitit

from slowfast_patches.engine.runs import Recipe, run_command, run_folder

__all__ = ["Job", "Slurm", "submit"]

_FIRST_PORT, _PORTS = 20_000, 20_000
"""Where the processes of a job meet: on its first machine, at a port that its number gives."""
_REGISTER = "jobs.json"
_ALIVE = {
    *("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING"),
    *("REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SIGNALING", "STAGE_OUT"),
}
"""States of SLURM's jobs that have not ended."""
_FOLDER = "slurm"


@dataclass(frozen=True)
class Slurm:
    """What SLURM is asked for.

    hours: of one job, after which it is requeued and goes on, `requeues` times at most.
    limit: jobs of an array that run at the same time.
    cpus: cores for each process.
    options: further options of sbatch, such as account.
    """

    partition: str
    hours: float = 24.0
    limit: int = 4
    cpus: int = 8
    requeues: int = 50
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """One run, as a job: trains on, from the last checkpoint, each time it is started."""

    command: tuple[str, ...]

    def __call__(self) -> int:
        """Train; on several machines, this one's share of it.

        Raises:
            RuntimeError: the training failed; its log says why.
        """
        job = submitit.JobEnvironment()
        status = subprocess.run(self.command_in(job), preexec_fn=_ignore_signals).returncode
        if status:
            raise RuntimeError(f"the training ended with exit status {status}: {self.command}")
        return status

    def command_in(self, job: Any) -> list[str]:
        """The command in a job: where its processes meet, and which of its machines this is.

        The port is the job's own, since others may run on the same machine.
        """
        host = job.hostnames[0] if job.num_nodes > 1 else "localhost"
        port = _FIRST_PORT + int(job.raw_job_id) % _PORTS
        options = ["--init_method", f"tcp://{host}:{port}"]
        if job.num_nodes > 1:
            options += ["--shard_id", str(job.node), "--num_shards", str(job.num_nodes)]
        program, rest = self.command[:2], self.command[2:]
        return [*program, *options, *rest]

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """What submitit queues when the job's time is up: the same again."""
        return submitit.helpers.DelayedSubmission(self)


def _ignore_signals() -> None:
    """SLURM's warnings before the end go to every process; they are for the job, which is queued
    again. A training that died of them would make it a failed one."""
    for number in (signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def submit(
    runs: Sequence[tuple[Recipe, int]], output: Path, run_net: Path, slurm: Slurm
) -> dict[Path, str]:
    """Queue runs of (recipe, seed) that are neither finished nor queued; job numbers by folder.

    Runs that ask for the same machines form one array, of which `limit` run at a time.

    Raises:
        ValueError: there is no SLURM here, or it refuses the jobs.
    """
    if shutil.which("sbatch") is None:
        raise ValueError("there is no SLURM on this machine (no sbatch); --local trains here")
    register = _Register(output)
    arrays: dict[tuple[int, int], list[tuple[Recipe, int]]] = defaultdict(list)
    for recipe, seed in runs:
        folder = run_folder(output, recipe, seed)
        if not (folder / "result.json").is_file() and not register.is_queued(folder):
            arrays[recipe.cfg.NUM_SHARDS, recipe.cfg.NUM_GPUS].append((recipe, seed))
    queued: dict[Path, str] = {}
    for (machines, gpus), members in arrays.items():
        folders = [run_folder(output, recipe, seed) for recipe, seed in members]
        jobs = [
            Job(tuple(run_command(recipe, seed, folder.resolve(), run_net.resolve())))
            for (recipe, seed), folder in zip(members, folders, strict=True)
        ]
        executor = _executor(output, slurm, machines, gpus)
        try:
            submitted = _queue(executor, jobs)
        except subprocess.CalledProcessError as error:
            raise ValueError(f"sbatch refuses the jobs: {error.stderr or error}") from error
        except submitit.core.utils.FailedJobError as error:
            raise ValueError(f"sbatch refuses the jobs: {error}") from error
        queued |= {folder: job.job_id for folder, job in zip(folders, submitted, strict=True)}
        register.add(queued)
    return queued


def _queue(executor: submitit.Executor, jobs: Sequence[Job]) -> list[Any]:
    """Submit callables of their own as one array (submitit's `map_array` takes one function)."""
    with executor.batch():
        return [executor.submit(job) for job in jobs]


def _executor(output: Path, slurm: Slurm, machines: int, gpus: int) -> submitit.SlurmExecutor:
    """Asks for `machines` machines of `gpus` GPUs for each job."""
    executor = submitit.SlurmExecutor(folder=output / _FOLDER, max_num_timeout=slurm.requeues)
    parameters: dict[str, Any] = {
        "partition": slurm.partition,
        "time": round(slurm.hours * 60),
        "nodes": machines,
        "ntasks_per_node": 1,
        "cpus_per_task": slurm.cpus * max(1, gpus),
        "array_parallelism": slurm.limit,
        "job_name": "multigrid",
        "additional_parameters": dict(slurm.options),
    }
    if gpus:
        parameters["gpus_per_node"] = gpus
    executor.update_parameters(**parameters)
    return executor


class _Register:
    """The job of each run's folder, kept beside the runs so that none is queued twice."""

    def __init__(self, output: Path) -> None:
        self._folder = output / _FOLDER
        self._path = self._folder / _REGISTER
        self._output = output
        text = self._path.read_text(encoding="utf-8") if self._path.is_file() else "{}"
        self._jobs: dict[str, str] = json.loads(text)

    def is_queued(self, folder: Path) -> bool:
        """Whether a run has a job that waits or runs, as the accounting says, or else the queue."""
        number = self._jobs.get(self._name(folder))
        if number is None:
            return False
        state = submitit.SlurmJob(self._folder, number).state.upper()
        if state == "UNKNOWN":
            command = ["squeue", "--noheader", "--jobs", number]
            return bool(subprocess.run(command, capture_output=True, text=True).stdout.strip())
        return state in _ALIVE

    def add(self, jobs: Mapping[Path, str]) -> None:
        self._jobs |= {self._name(folder): number for folder, number in jobs.items()}
        self._folder.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._jobs, indent=2) + "\n", encoding="utf-8")

    def _name(self, folder: Path) -> str:
        return str(folder.relative_to(self._output))
