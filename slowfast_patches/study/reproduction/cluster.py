"""Runs as SLURM jobs: a job each, in arrays, none queued twice."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from slowfast_patches.launch.slurm import (
    FOLDER,
    Job,
    Slurm,
    has_slurm,
    is_queued,
    make_executor,
    queue,
)
from slowfast_patches.study.runs import Arm, run_command, run_folder

__all__ = ["submit"]

_REGISTER = "jobs.json"


def submit(
    runs: Sequence[tuple[Arm, int]], output: Path, run_net: Path, slurm: Slurm
) -> dict[Path, str]:
    """Queue runs of (arm, seed) that are neither finished nor queued; job numbers by folder.

    Runs that ask for the same machines form one array, of which `limit` run at a time.

    Raises:
        ValueError: there is no SLURM here, or it refuses the jobs.
    """
    if not has_slurm():
        raise ValueError("there is no SLURM on this machine (no sbatch); --local trains here")
    register = _Register(output)
    arrays: dict[tuple[int, int], list[tuple[Arm, int]]] = defaultdict(list)
    for arm, seed in runs:
        folder = run_folder(output, arm, seed)
        if not (folder / "result.json").is_file() and not register.is_queued(folder):
            arrays[arm.recipe.num_shards, arm.recipe.num_gpus].append((arm, seed))
    queued: dict[Path, str] = {}
    for (machines, gpus), members in arrays.items():
        folders = [run_folder(output, arm, seed) for arm, seed in members]
        commands = [
            run_command(arm, seed, folder.resolve(), run_net.resolve())
            for (arm, seed), folder in zip(members, folders, strict=True)
        ]
        executor = make_executor(output / FOLDER, slurm, machines, gpus)
        jobs = [Job(tuple(command), slurm.warning_seconds) for command in commands]
        queued |= dict(zip(folders, queue(executor, jobs), strict=True))
        register.add(queued)
    return queued


class _Register:
    """The job of each run's folder, kept beside the runs so that none is queued twice."""

    def __init__(self, output: Path) -> None:
        self._folder = output / FOLDER
        self._path = self._folder / _REGISTER
        self._output = output
        text = self._path.read_text(encoding="utf-8") if self._path.is_file() else "{}"
        self._jobs: dict[str, str] = json.loads(text)

    def is_queued(self, folder: Path) -> bool:
        """Whether a run has a job that waits or runs."""
        number = self._jobs.get(self._name(folder))
        return number is not None and is_queued(self._folder, number)

    def add(self, jobs: Mapping[Path, str]) -> None:
        self._jobs |= {self._name(folder): number for folder, number in jobs.items()}
        self._folder.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._jobs, indent=2) + "\n", encoding="utf-8")

    def _name(self, folder: Path) -> str:
        return str(folder.relative_to(self._output))
