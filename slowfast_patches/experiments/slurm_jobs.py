"""Check a recipe before it is submitted to SLURM, and submit the runs of an experiment."""

from __future__ import annotations

import sys
from pathlib import Path

from slowfast_patches.config import check_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.dataset_lists import list_path
from slowfast_patches.experiments.runs import Experiment, run_command
from slowfast_patches.experiments.variants import hidden_files
from slowfast_patches.launch.launch import resolve
from slowfast_patches.launch.slurm import Slurm, submit
from slowfast_patches.plan.run_identity import run_identity
from slowfast_patches.plan.training_plan import format_plan, plan_of
from slowfast_patches.train.checkpoint import head_of, last_checkpoint
from slowfast_patches.train.resume import check_same_run
from slowfast_patches.utils.errors import UserError


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
