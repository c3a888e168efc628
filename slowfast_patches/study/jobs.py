"""Trainings as SLURM jobs, none queued twice: a recipe, checked where it is submitted, and the runs
of a study, in arrays."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from submitit import SlurmExecutor

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
from slowfast_patches.study.runs import ArmRun, run_command, run_folder

__all__ = ["Submission", "check", "executor_of", "load", "submit", "submit_all"]


@dataclass(frozen=True)
class Submission:
    """A training on NUM_SHARDS machines of NUM_GPUS GPUs; 0 GPUs: on the CPU, a process a machine.

    `recipe` is what `cfg_file` and the KEY VALUE pairs `overrides` give, not yet scaled to its
    processes; `recipe_batch` the clips of an iteration before machines and GPUs were chosen.
    """

    cfg_file: Path
    overrides: tuple[str, ...]
    recipe: Recipe
    recipe_batch: int

    @property
    def folder(self) -> Path:
        return Path(self.recipe.output_dir)


def load(
    cfg_file: Path, overrides: Sequence[str], machines: int | None, gpus: int | None
) -> Submission:
    """The training of a recipe; machines and GPUs of each are the recipe's where None is given.

    Raises:
        ValueError: the recipe does not load, or says something of the machines that the options
            say as well.
    """
    patching.apply()
    options = {"NUM_SHARDS": ("--nodes", machines), "NUM_GPUS": ("--gpus-per-node", gpus)}
    for key, (option, value) in options.items():
        if value is not None and key in overrides[::2]:
            raise ValueError(f"{option} {value} sets {key}; leave one of them out")
    if "SHARD_ID" in overrides[::2]:
        raise ValueError("SHARD_ID is set on each machine of the job; leave it out")
    written = load_recipe(cfg_file, overrides)
    keys: dict[str, object] = dict(zip(overrides[::2], overrides[1::2], strict=True))
    for key, (_, value) in options.items():
        keys[key] = written[key] if value is None else value
    keys["OUTPUT_DIR"] = Path(written.output_dir).resolve()
    pairs = as_overrides(keys)
    batch = written.base_shape.batch
    return Submission(cfg_file.resolve(), pairs, load_recipe(cfg_file, pairs), batch)


def check(submission: Submission) -> tuple[str, list[str]]:
    """Try everything that can be tried here; what will be trained, and warnings.

    The machine that submits need not see the data nor the weights.

    Raises:
        ValueError: the recipe cannot train or test as it is, or not on these processes.
        ImportError: it needs a package that is not installed.
    """
    recipe = for_processes(submission.recipe)
    world_size = processes_of(recipe)
    check_recipe(recipe, world_size)
    warnings = [*_check_files(recipe), *_check_rate(submission, recipe)]
    texts = [_describe(submission, recipe, world_size)]
    if (submission.folder / "result.json").is_file():
        texts.append(f"{recipe.output_dir} holds a finished run, which would only be tested again")
    if not recipe.train.enable:
        texts.append("TRAIN.ENABLE False: nothing is trained")
    elif not list_path(recipe, "train").is_file() and recipe.data.num_train_videos < 1:
        warnings.append("no plan without the length of the list: DATA.NUM_TRAIN_VIDEOS N says it")
    else:
        texts.insert(0, f"{format_plan(plan_of(recipe))}\n")
    return "\n".join(texts), warnings


def _describe(submission: Submission, recipe: Recipe, world_size: int) -> str:
    """The global batch and the learning rate that belongs to it."""
    machines = recipe.num_shards
    return (
        f"NUM_SHARDS {machines} × NUM_GPUS {recipe.num_gpus}: {world_size} processes. Global "
        f"batch: {machines} × TRAIN.BATCH_SIZE {recipe.train.batch_size} = "
        f"{recipe.base_shape.batch} clips; SOLVER.BASE_LR {recipe.solver.base_lr:g}"
    )


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


def _check_rate(submission: Submission, recipe: Recipe) -> list[str]:
    """A warning where the batch grew or shrank and the learning rates did not."""
    batch = recipe.base_shape.batch
    if batch == submission.recipe_batch or recipe.solver.reference_batch_size:
        return []
    return [
        f"the recipe's learning rates are for {submission.recipe_batch} clips an iteration, this "
        f"has {batch}; SOLVER.REFERENCE_WORLD_SIZE N scales both, N the GPUs that it was written "
        f"for, and SOLVER.REFERENCE_BATCH_SIZE {submission.recipe_batch} the rates alone"
    ]


def submit(submission: Submission, slurm: Slurm, name: str, run_net: Path) -> str:
    """Queue it, and note the job in its folder; the job's number.

    Raises:
        ValueError: there is no SLURM here, it refuses the job, or the folder has one that has not
            ended.
    """
    _check_slurm("docs/running.md has the ways to start a run without it")
    register = submission.folder / "job.json"
    if register.is_file():
        known = json.loads(register.read_text(encoding="utf-8"))["job"]
        if state_in_queue(known):
            raise ValueError(
                f"job {known} trains into {submission.folder} already, or waits to: scancel "
                f"{known} ends it; another OUTPUT_DIR makes another run"
            )
    command = [sys.executable, str(run_net), "--cfg", str(submission.cfg_file)]
    job = Job((*command, *submission.overrides), slurm.warning_seconds)
    [number] = queue(executor_of(submission, slurm, name), [job])
    _write_json(register, {"job": number, "command": job.command})
    return number


def executor_of(submission: Submission, slurm: Slurm, name: str) -> SlurmExecutor:
    """What queues it, in its folder."""
    recipe = submission.recipe
    folder = submission.folder / FOLDER
    return make_executor(folder, slurm, recipe.num_shards, recipe.num_gpus, name)


def submit_all(runs: Sequence[ArmRun], output: Path, run_net: Path, slurm: Slurm) -> dict[str, str]:
    """Queue the runs that are neither finished nor queued; job numbers by folder in `output`.

    Runs that ask for the same machines form one array, of which `limit` run at a time.

    Raises:
        ValueError: there is no SLURM here, or it refuses the jobs.
    """
    _check_slurm("--local trains here")
    register = output / FOLDER / "jobs.json"
    known = dict[str, str]()
    if register.is_file():
        known = json.loads(register.read_text(encoding="utf-8"))
    arrays: dict[tuple[int, int], dict[str, Job]] = defaultdict(dict)
    for arm, seed in runs:
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
        _write_json(register, known | queued)
    return queued


def _check_slurm(instead: str) -> None:
    if not has_slurm():
        raise ValueError(f"there is no SLURM on this machine (no sbatch); {instead}")


def _write_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
