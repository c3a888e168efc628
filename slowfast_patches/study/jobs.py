"""Trainings as SLURM jobs, none queued twice: a recipe, checked where it is submitted, and the runs
of a study, in arrays."""

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
from slowfast_patches.launch.launch import for_processes, processes_of
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

__all__ = ["check", "job_keys", "submit", "submit_recipe", "submit_study"]


def job_keys(
    cfg_file: Path, overrides: Sequence[str], machines: int | None, gpus: int | None
) -> tuple[str, ...]:
    """The KEY VALUE pairs of a job on some machines of some GPUs; the recipe's own for None.

    Raises:
        ValueError: the recipe does not load, or a key is set that the options or the job set.
    """
    options = {"NUM_SHARDS": ("--nodes", machines), "NUM_GPUS": ("--gpus-per-node", gpus)}
    for key, (option, value) in options.items():
        if value is not None and key in overrides[::2]:
            raise ValueError(f"{option} {value} sets {key}; leave one of them out")
    if "SHARD_ID" in overrides[::2]:
        raise ValueError("SHARD_ID is set on each machine of the job; leave it out")
    folder = Path(load_recipe(cfg_file, overrides).output_dir).resolve()
    given = {key: value for key, (_, value) in options.items() if value is not None}
    return (*overrides, *as_overrides({**given, "OUTPUT_DIR": folder}))


def check(written: Recipe, asked: Recipe) -> tuple[str, list[str]]:
    """Try everything that can be tried here; what will be trained, and warnings.

    The machine that submits need not see the data nor the weights.

    Args:
        written: the recipe before machines and GPUs were chosen.
        asked: the recipe with them.

    Raises:
        ValueError: the recipe cannot train or test as it is, or not on these processes.
        ImportError: it needs a package that is not installed.
    """
    patching.apply()
    recipe = for_processes(asked)
    check_recipe(recipe, processes_of(recipe))
    batch = recipe.base_shape.batch
    texts = [
        f"NUM_SHARDS {recipe.num_shards} × NUM_GPUS {recipe.num_gpus}: {processes_of(recipe)} "
        f"processes. Global batch: {recipe.num_shards} × TRAIN.BATCH_SIZE "
        f"{recipe.train.batch_size} = {batch} clips; SOLVER.BASE_LR {recipe.solver.base_lr:g}"
    ]
    warnings = _check_files(recipe)
    own_batch = written.base_shape.batch
    if batch != own_batch and not recipe.solver.reference_batch_size:
        warnings.append(
            f"the recipe's learning rates are for {own_batch} clips an iteration, this has "
            f"{batch}; SOLVER.REFERENCE_WORLD_SIZE N scales both, N the GPUs that it was written "
            f"for, and SOLVER.REFERENCE_BATCH_SIZE {own_batch} the rates alone"
        )
    if Path(recipe.output_dir, "result.json").is_file():
        texts.append(f"{recipe.output_dir} holds a finished run, which would only be tested again")
    has_length = list_path(recipe, "train").is_file() or recipe.data.num_train_videos > 0
    if recipe.train.enable and has_length:
        texts.insert(0, f"{format_plan(plan_of(recipe))}\n")
    elif recipe.train.enable:
        warnings.append("no plan without the length of the list: set DATA.NUM_TRAIN_VIDEOS N")
    return "\n".join(texts), warnings


def _check_files(recipe: Recipe) -> list[str]:
    """Read the lists and look at the weights that are visible; warnings for the others."""
    if not recipe.data.path_to_data_dir:
        raise ValueError("set DATA.PATH_TO_DATA_DIR to the folder of the lists, as the job sees it")
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
    return [f"{path} is not on this machine; those of the job must see it" for path in hidden]


def submit_recipe(recipe: Recipe, command: Sequence[str], slurm: Slurm, name: str) -> str:
    """Queue a training into its OUTPUT_DIR; the job's number.

    Raises:
        ValueError: as `submit`, or a job that has not ended trains into that folder.
    """
    folder = Path(recipe.output_dir)
    queued = submit({".": (recipe, command)}, folder, slurm, name)
    if not queued:
        number = _register(folder)["."]
        raise ValueError(
            f"job {number} trains into {folder} already, or waits to: scancel {number} ends it; "
            "another OUTPUT_DIR makes another run"
        )
    return queued["."]


def submit_study(study: Study, run_net: Path, slurm: Slurm) -> dict[str, str]:
    """Queue the runs that are neither finished nor queued; job numbers by folder.

    Raises:
        ValueError: as `submit`.
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
    """Queue the runs that are not queued yet, and note their numbers in a folder; the numbers.

    Runs that ask for the same machines form one array, of which `limit` run at a time.

    Args:
        runs: the recipe and the command of each, by name.

    Raises:
        ValueError: there is no SLURM here, or it refuses the jobs.
    """
    if not has_slurm():
        raise ValueError(
            "there is no SLURM on this machine (no sbatch); multigrid-train, and --local of a "
            "study, train without it"
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
    """The numbers of jobs that were queued from a folder, by run."""
    path = folder / FOLDER / "jobs.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
