"""Jobs of SLURM: submit a recipe or the runs of an experiment.

Runs that already have a queued or running job are not submitted again.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from slowfast_patches.config import check_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.dataset_lists import list_path
from slowfast_patches.experiments.runs import Experiment, run_command
from slowfast_patches.experiments.variants import hidden_files
from slowfast_patches.launch.launch import resolve
from slowfast_patches.launch.slurm import FOLDER, Slurm, batch_file
from slowfast_patches.launch.slurm_options import OPTIONS
from slowfast_patches.plan.run_identity import run_identity
from slowfast_patches.plan.training_plan import format_plan, plan_of
from slowfast_patches.train.checkpoint import head_of, last_checkpoint
from slowfast_patches.train.resume import check_same_run
from slowfast_patches.utils.command_line import option_of
from slowfast_patches.utils.errors import UserError, mistake_in
from slowfast_patches.utils.files import make_folder, write_text

_JOBS = "jobs.json"
"""Name of the file with the job IDs, in the folder of the logs."""


def slurm_of(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Slurm | None:
    """Return the resources that the options request, or None without a partition."""
    names = (*OPTIONS, "options")
    given = {name: value for name in names if (value := getattr(args, name)) is not None}
    if args.partition is not None and not args.partition.strip():
        parser.error("the name of the partition is empty")
    if args.partition is None:
        if given:
            parser.error(f"{option_of(next(iter(given)))} has no effect without --slurm")
        return None
    return Slurm(args.partition, **given | {"options": dict(args.options or ())})


def check(written: Recipe, asked: Recipe) -> tuple[str, list[str]]:
    """Check a job before it is submitted, and describe the training.

    Missing data and weights only cause warnings, because the machine that submits the job may not
    have access to them.

    Args:
        written: Recipe as written in its file.
        asked: Recipe with the keys of the job.

    Returns:
        A tuple of the description and a list of warnings.

    Raises:
        ValueError: The recipe is invalid, or does not support this number of processes.
        ImportError: A package that the recipe needs is not installed.
    """
    if asked.shard_id:
        raise UserError(
            f"SHARD_ID is {asked.shard_id}, but each machine of a SLURM job gets its number from "
            "srun. Remove SHARD_ID."
        )
    recipe = resolve(asked)
    check_recipe(recipe)
    batch = recipe.base_shape.batch
    own_batch = written.base_shape.batch
    text = (
        f"Global batch: {recipe.num_shards} × TRAIN.BATCH_SIZE {recipe.train.batch_size} = {batch} "
        f"clips on {recipe.world_size} processes; SOLVER.BASE_LR {recipe.solver.base_lr:g}"
    )
    warnings = [
        f"{path} is not on this machine. It must exist on the nodes of the job"
        for path in hidden_files(recipe)
    ]
    if batch != own_batch and recipe.solver.base_lr == written.solver.base_lr:
        warnings.append(
            f"the recipe's learning rates are for {own_batch} clips per iteration, but this job "
            f"has {batch}. To scale them, set SOLVER.REFERENCE_BATCH_SIZE {own_batch}. "
            "TRAIN.BATCH_SIZE is the number of clips of one machine"
        )
    has_length = list_path(recipe, "train").is_file() or recipe.data.num_train_videos > 0
    if recipe.train.enable and has_length:
        text = f"{format_plan(plan_of(recipe))}\n\n{text}"
    return text, warnings


def check_resumable(recipe: Recipe) -> None:
    """Check that a job may resume from the checkpoints in OUTPUT_DIR, if there are any.

    Lists and weights that are not on this machine are not compared. The job compares them.

    Args:
        recipe: The resolved recipe of the job.

    Raises:
        ValueError: The newest checkpoint is of another run.
    """
    path = last_checkpoint(recipe.output_dir)
    head = head_of(path) if path and recipe.train.enable and recipe.train.auto_resume else None
    if path is not None and head is not None:
        finished = Path(recipe.output_dir, "result.json").exists()
        identity = run_identity(recipe, clips=False)
        check_same_run(head, identity, recipe, path, rates_may_differ=not finished)


def submit_experiment(experiment: Experiment, run_net: Path, slurm: Slurm) -> dict[str, str]:
    """Submit the missing runs of an experiment, and print their job IDs to standard error.

    Call `checks.checked` before.

    Returns:
        Maps the folder of each submitted run, relative to the experiment's output folder, to its
        job ID.

    Raises:
        ValueError: SLURM is missing or rejects a job.
    """
    runs = dict[str, tuple[Recipe, list[str]]]()
    for variant, seed in experiment.missing():
        folder = experiment.folder(variant, seed)
        command = run_command(variant, seed, folder.resolve(), run_net.resolve())
        runs[str(folder.relative_to(experiment.output))] = (variant.recipe, command)
    queued = submit(runs, experiment.output, slurm)
    numbers = ", ".join(queued.values()) or "all runs are finished or already queued"
    print(f"{len(queued)} jobs submitted: {numbers}", file=sys.stderr)
    return queued


def submit(
    runs: Mapping[str, tuple[Recipe, Sequence[str]]], folder: Path, slurm: Slurm
) -> dict[str, str]:
    """Submit a job for each run that has no queued or running job, and store the job IDs.

    Args:
        runs: Maps the name of each run to its recipe and its command line.
        folder: Folder to store the job IDs and the logs in.
        slurm: Resources to request.

    Returns:
        Maps the name of each submitted run to its job ID.

    Raises:
        ValueError: SLURM is missing or rejects a job, or a run has a job with another command.
    """
    if shutil.which("sbatch") is None:
        raise UserError(
            "This machine has no SLURM (no sbatch). To train without SLURM, use multigrid-train, "
            "multigrid-compare without --slurm or multigrid-reproduce --local."
        )
    logs = folder / FOLDER
    path = logs / _JOBS
    with mistake_in(f"{path} is damaged. Delete it if no job is queued", OSError, ValueError):
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        known = {name: [str(job), str(command)] for name, (job, command) in content.items()}
    active = _run("squeue", "--all", "--noheader", "-o%i").split() if known else []
    missing = [path for path in (logs, *logs.parents) if not path.exists()]
    make_folder(logs)  # SLURM does not create the folder of a log.
    # If this process runs in a job, sbatch would pass the variables of this job to the new job.
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name == "SLURM_CONF" or not name.startswith("SLURM_")
    }
    commands = {name: shlex.join(command) for name, (_, command) in runs.items()}
    waiting = {name: job for name in runs if (job := known.get(name, [""])[0]) in active}
    for name, job in waiting.items():
        if known[name][1] != commands[name]:
            raise UserError(
                f"Job {job} of {name} is queued or running with another command: {known[name][1]}. "
                f"Cancel it (scancel {job}), or give the same command."
            )
    queued = dict[str, str]()
    try:
        for name, (recipe, command) in runs.items():
            if name not in waiting:
                text = batch_file(command, recipe, slurm, logs)
                said = _run("sbatch", "--parsable", input=text, env=inherited)
                queued[name] = said.split()[-1].partition(";")[0]  # "ID" or "ID;CLUSTER"
                known[name] = [queued[name], commands[name]]
                write_text(path, json.dumps(known))
    finally:
        if not queued:
            with suppress(OSError):  # another process may have written to the folder
                for empty in missing:
                    empty.rmdir()
    return queued


def _run(*command: str, **options: Any) -> str:
    """Run a command of SLURM, and return its output."""
    with mistake_in(f"SLURM's {command[0]} cannot be started"):
        done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode:
        raise UserError(f"SLURM's {command[0]} failed: {done.stderr.strip()}")
    return str(done.stdout)
