"""SLURM jobs: submit a recipe, or the runs of a study as job arrays, without duplicates."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from slowfast_patches import patching
from slowfast_patches.config import check_recipe, load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.scale import as_overrides
from slowfast_patches.datasets.lists.dataset_lists import list_path, read_list
from slowfast_patches.launch.launch import resolve
from slowfast_patches.launch.slurm import (
    FOLDER,
    Job,
    Slurm,
    has_slurm,
    make_executor,
    queue,
    state_in_queue,
)
from slowfast_patches.models.weights import check_file
from slowfast_patches.plan.plan import format_plan, plan_of
from slowfast_patches.study.runs import Study, run_command


def job_keys(
    cfg_file: Path, overrides: Sequence[str], machines: int | None, gpus: int | None
) -> tuple[str, ...]:
    """Return the KEY VALUE pairs of a job.

    Args:
        cfg_file: the recipe.
        overrides: KEY VALUE pairs of the user.
        machines: number of nodes, or None for that of the recipe.
        gpus: number of GPUs on each, or None for that of the recipe.

    Raises:
        ValueError: The recipe does not load, or a key is given that the options or the job set.
    """
    options = {"NUM_SHARDS": ("--nodes", machines), "NUM_GPUS": ("--gpus-per-node", gpus)}
    for key, (option, value) in options.items():
        if value is not None and key in overrides[::2]:
            raise ValueError(f"{option} {value} sets {key}, too. Give only one of them.")
    if "SHARD_ID" in overrides[::2]:
        raise ValueError("SHARD_ID is set on each machine of the job. Leave it out.")
    folder = Path(load_recipe(cfg_file, overrides).output_dir).resolve()
    given = {key: value for key, (_, value) in options.items() if value is not None}
    return (*overrides, *as_overrides({**given, "OUTPUT_DIR": folder}))


def check(written: Recipe, asked: Recipe) -> tuple[str, list[str]]:
    """Check a job as far as possible on the machine that submits it.

    That machine may lack access to the data and to the weights.

    Args:
        written: the recipe before machines and GPUs were chosen.
        asked: the recipe with them.

    Returns:
        A description of the training, and warnings.

    Raises:
        ValueError: The recipe cannot train or test, or not on these processes.
        ImportError: A package that the recipe needs is not installed.
    """
    patching.apply()
    recipe = resolve(asked)
    check_recipe(recipe)
    batch = recipe.base_shape.batch
    texts = [
        f"NUM_SHARDS {recipe.num_shards} × NUM_GPUS {recipe.num_gpus}: {recipe.world_size} "
        f"processes. Global batch: {recipe.num_shards} × TRAIN.BATCH_SIZE "
        f"{recipe.train.batch_size} = {batch} clips; SOLVER.BASE_LR {recipe.solver.base_lr:g}"
    ]
    warnings = _check_files(recipe)
    own_batch = written.base_shape.batch
    if batch != own_batch and not recipe.solver.reference_batch_size:
        warnings.append(
            f"the recipe's learning rates are for {own_batch} clips an iteration, this has "
            f"{batch}. To scale batch and rates, set SOLVER.REFERENCE_WORLD_SIZE to the number of "
            "GPUs that the recipe was written for. To scale the rates alone, set "
            f"SOLVER.REFERENCE_BATCH_SIZE {own_batch}"
        )
    if Path(recipe.output_dir, "result.json").is_file():
        texts.append(f"{recipe.output_dir} has a finished run. It would only be tested again.")
    has_length = list_path(recipe, "train").is_file() or recipe.data.num_train_videos > 0
    if recipe.train.enable and has_length:
        texts.insert(0, f"{format_plan(plan_of(recipe))}\n")
    elif recipe.train.enable:
        warnings.append(
            "the training list is not here, so there is no plan. Set DATA.NUM_TRAIN_VIDEOS N"
        )
    return "\n".join(texts), warnings


def _check_files(recipe: Recipe) -> list[str]:
    """Check the lists and weights that exist here, and return warnings for the others."""
    if not recipe.data.path_to_data_dir:
        raise ValueError(
            "DATA.PATH_TO_DATA_DIR is not set. Set it to the folder of the lists on the nodes."
        )
    hidden = list[Path]()
    for split in ["train", "val"] * recipe.train.enable + ["test"] * recipe.test.enable:
        if (path := list_path(recipe, split)).is_file():
            read_list(recipe, split)
        else:
            hidden.append(path)
    section, needed = ("TRAIN", recipe.train) if recipe.train.enable else ("TEST", recipe.test)
    if (weights := needed.checkpoint_file_path) and Path(weights).exists():
        check_file(weights, needed.checkpoint_type, section=section)
    elif weights:
        hidden.append(Path(weights))
    return [f"{path} is not on this machine. The nodes of the job need it" for path in hidden]


def submit_recipe(recipe: Recipe, command: Sequence[str], slurm: Slurm, name: str) -> str:
    """Queue a training, and return the number of its job.

    Args:
        recipe: the recipe, with the folder of the run as OUTPUT_DIR.
        command: command line of the training.
        slurm: options of the job.
        name: name of the job.

    Raises:
        ValueError: As for `submit`, or a queued or running job uses that folder.
    """
    folder = Path(recipe.output_dir)
    queued = submit({".": (recipe, command)}, folder, slurm, name)
    if not queued:
        number = _register(folder)["."]
        raise ValueError(
            f"Job {number} trains into {folder}, or waits in the queue. End it by scancel "
            f"{number}, or give another OUTPUT_DIR."
        )
    return queued["."]


def submit_study(study: Study, run_net: Path, slurm: Slurm) -> dict[str, str]:
    """Submit the missing runs of a study.

    Returns:
        The numbers of the new jobs by output folder.

    Raises:
        ValueError: As for `submit`.
    """
    runs = dict[str, tuple[Recipe, list[str]]]()
    for arm, seed in study.missing():
        folder = study.folder(arm, seed)
        command = run_command(arm, seed, folder.resolve(), run_net.resolve())
        runs[str(folder.relative_to(study.output))] = (arm.recipe, command)
    return submit(runs, study.output, slurm)


def submit(
    runs: Mapping[str, tuple[Recipe, Sequence[str]]],
    folder: Path,
    slurm: Slurm,
    name: str = "multigrid",
) -> dict[str, str]:
    """Queue the runs that are not queued yet, and store the numbers of their jobs.

    Runs on the same number of machines and GPUs form one job array.

    Args:
        runs: the recipe and the command line of each run, by name.
        folder: where to store the numbers.
        slurm: options of the jobs. `limit` jobs of an array run at a time.
        name: name of the jobs.

    Returns:
        The numbers of the new jobs by name of the run.

    Raises:
        ValueError: This machine has no SLURM, or SLURM refuses the jobs.
    """
    if not has_slurm():
        raise ValueError(
            "This machine has no SLURM (no sbatch). To train without it, use multigrid-train, or "
            "--local for a study."
        )
    known = _register(folder)
    arrays: dict[tuple[int, int], dict[str, Job]] = defaultdict(dict)
    for run, (recipe, command) in runs.items():
        if run not in known or not state_in_queue(known[run]):
            job = Job(tuple(command), slurm.warning_seconds)
            arrays[recipe.num_shards, recipe.num_gpus][run] = job
    queued = dict[str, str]()
    for (machines, gpus), jobs in arrays.items():
        executor = make_executor(folder / FOLDER, slurm, machines, gpus, name)
        queued |= dict(zip(jobs, queue(executor, list(jobs.values())), strict=True))
        (folder / FOLDER / "jobs.json").write_text(json.dumps(known | queued), encoding="utf-8")
    return queued


def _register(folder: Path) -> dict[str, str]:
    """Return the numbers of the jobs that were queued from a folder, by name of the run."""
    path = folder / FOLDER / "jobs.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
