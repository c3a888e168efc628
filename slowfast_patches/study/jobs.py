"""The runs of a study as SLURM jobs: in arrays, none queued twice."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from slowfast_patches.launch.slurm import (
    FOLDER,
    Job,
    Slurm,
    has_slurm,
    make_executor,
    queue,
    state_in_queue,
)
from slowfast_patches.study.arms import Arm
from slowfast_patches.study.runs import run_command, run_folder

__all__ = ["submit_all"]


def submit_all(
    arms: Sequence[Arm], seeds: Sequence[int], output: Path, run_net: Path, slurm: Slurm
) -> dict[str, str]:
    """Queue the runs that are neither finished nor queued; job numbers by folder in `output`.

    Runs that ask for the same machines form one array, of which `limit` run at a time.

    Raises:
        ValueError: there is no SLURM here, or it refuses the jobs.
    """
    if not has_slurm():
        raise ValueError("there is no SLURM on this machine (no sbatch); --local trains here")
    register, known = output / FOLDER / "jobs.json", dict[str, str]()
    if register.is_file():
        known = json.loads(register.read_text(encoding="utf-8"))
    arrays: dict[tuple[int, int], dict[str, Job]] = defaultdict(dict)
    for arm, seed in ((arm, seed) for seed in seeds for arm in arms):
        folder = run_folder(output, arm, seed)
        name = str(folder.relative_to(output))
        waits = name in known and state_in_queue(known[name])
        if not (folder / "result.json").is_file() and not waits:
            command = run_command(arm, seed, folder.resolve(), run_net.resolve())
            job = Job(tuple(command), slurm.warning_seconds)
            arrays[arm.recipe.num_shards, arm.recipe.num_gpus][name] = job
    queued: dict[str, str] = {}
    for (machines, gpus), jobs in arrays.items():
        executor = make_executor(output / FOLDER, slurm, machines, gpus)
        queued |= dict(zip(jobs, queue(executor, list(jobs.values())), strict=True))
        register.parent.mkdir(parents=True, exist_ok=True)
        register.write_text(json.dumps(known | queued, indent=2) + "\n", encoding="utf-8")
    return queued
