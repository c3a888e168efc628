"""One training as one SLURM job: checked where it is submitted, queued once."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from submitit import SlurmExecutor

from slowfast_patches import patching
from slowfast_patches.config import check_recipe, load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.scale import as_overrides
from slowfast_patches.config.schedule import check_world_size, rates_of_batch
from slowfast_patches.datasets.lists.dataset_lists import list_path, read_list
from slowfast_patches.launch.launch import for_processes, processes_of
from slowfast_patches.launch.slurm import FOLDER, Job, Slurm, make_executor, queue, state_in_queue
from slowfast_patches.models.weights import check_file
from slowfast_patches.plan.plan import format_plan, plan_config
from slowfast_patches.train import checkpoints

__all__ = ["Submission", "check", "executor_of", "load", "other_ways", "refuse_twice", "submit"]

_REGISTER = "job.json"


@dataclass(frozen=True)
class Submission:
    """A training on `machines` machines of `gpus` GPUs; 0 GPUs: on the CPU, a process a machine.

    `recipe` is what `cfg_file` and the KEY VALUE pairs `overrides` give, not yet scaled to its
    processes; `recipe_batch` the clips of an iteration before machines and GPUs were chosen.
    """

    cfg_file: Path
    overrides: tuple[str, ...]
    recipe: Recipe
    recipe_batch: int

    @property
    def machines(self) -> int:
        return self.recipe.num_shards

    @property
    def gpus(self) -> int:
        return self.recipe.num_gpus

    @property
    def folder(self) -> Path:
        return Path(self.recipe.output_dir)

    def command(self, run_net: Path) -> list[str]:
        """What each machine runs; where the processes meet, SLURM says."""
        return [sys.executable, str(run_net), "--cfg", str(self.cfg_file), *self.overrides]


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
    chosen: dict[str, object] = {key: written[key] for key in options}
    chosen |= {key: value for key, (_, value) in options.items() if value is not None}
    chosen["OUTPUT_DIR"] = Path(written.output_dir).resolve()
    given = dict(zip(overrides[::2], overrides[1::2], strict=True))
    keys = as_overrides({key: given[key] for key in given if key not in chosen} | chosen)
    return Submission(
        cfg_file.resolve(), keys, load_recipe(cfg_file, keys), written.base_shape.batch
    )


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
    texts = [_describe(submission, recipe, world_size), *_look_at_folder(recipe)]
    if not recipe.train.enable:
        texts.append("TRAIN.ENABLE False: nothing is trained")
    elif not list_path(recipe, "train").is_file() and recipe.data.num_train_videos < 1:
        warnings.append("no plan without the length of the list: DATA.NUM_TRAIN_VIDEOS N says it")
    else:
        schedule, plan = plan_config(recipe)
        check_world_size(recipe, schedule, world_size)
        texts.insert(0, f"{format_plan(plan)}\n")
    return "\n".join(texts), warnings


def _describe(submission: Submission, recipe: Recipe, world_size: int) -> str:
    """The global batch and the learning rate that belongs to it."""
    machines, solver = submission.machines, submission.recipe.solver
    trained = rates_of_batch(recipe).solver.base_lr
    rate = f"SOLVER.BASE_LR {trained:g}"
    if trained != solver.base_lr:
        key = "REFERENCE_BATCH_SIZE" if solver.reference_batch_size else "REFERENCE_WORLD_SIZE"
        rate += f", scaled from {solver.base_lr:g} (SOLVER.{key})"
    elif solver.base_lr_scale_num_shards:
        rate += f" × {machines} (SOLVER.BASE_LR_SCALE_NUM_SHARDS)"
    return (
        f"NUM_SHARDS {machines} × NUM_GPUS {submission.gpus}: {world_size} processes. Global "
        f"batch: {machines} × TRAIN.BATCH_SIZE {recipe.train.batch_size} = "
        f"{recipe.base_shape.batch} clips; {rate}"
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
    keys = ("REFERENCE_WORLD_SIZE", "REFERENCE_BATCH_SIZE", "BASE_LR_SCALE_NUM_SHARDS")
    if batch == submission.recipe_batch or any(submission.recipe[f"SOLVER.{key}"] for key in keys):
        return []
    return [
        f"the recipe's learning rates are for {submission.recipe_batch} clips an iteration, this "
        f"has {batch}; SOLVER.REFERENCE_WORLD_SIZE N scales both, N the GPUs that it was written "
        f"for, and SOLVER.REFERENCE_BATCH_SIZE {submission.recipe_batch} the rates alone"
    ]


def _look_at_folder(recipe: Recipe) -> list[str]:
    """What the training finds in its folder."""
    folder = Path(recipe.output_dir)
    if (folder / "result.json").is_file():
        return [f"{folder} holds a finished run, which would only be tested again"]
    found = checkpoints.last_checkpoint(folder)
    if found is None or not recipe.train.enable:
        return []
    if recipe.train.auto_resume:
        return [f"Goes on from {found}"]
    return [f"Starts over, TRAIN.AUTO_RESUME False; {found.parent} is set aside"]


def refuse_twice(submission: Submission) -> None:
    """Raise ValueError, with the job's number, if a run's folder has a job that has not ended."""
    path = submission.folder / _REGISTER
    if not path.is_file():
        return
    try:
        number = str(json.loads(path.read_text(encoding="utf-8"))["job"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} names no job ({error}); remove it if none runs") from error
    if state_in_queue(number):
        raise ValueError(
            f"job {number} trains into {submission.folder} already, or waits to: scancel {number} "
            "ends it; another OUTPUT_DIR makes another run"
        )


def submit(submission: Submission, slurm: Slurm, name: str, run_net: Path) -> str:
    """Queue it, and note the job in its folder; the job's number.

    Raises:
        ValueError: SLURM refuses it.
    """
    command, machines = submission.command(run_net), submission.machines
    job = Job(tuple(command), slurm.warning_seconds)
    [number] = queue(executor_of(submission, slurm, name), [job])
    when = datetime.now(UTC).isoformat(timespec="seconds")
    noted = {"job": number, "submitted": when, "machines": machines, "gpus": submission.gpus}
    content = json.dumps({**noted, "command": command}, indent=2)
    (submission.folder / _REGISTER).write_text(content + "\n", encoding="utf-8")
    return number


def executor_of(submission: Submission, slurm: Slurm, name: str) -> SlurmExecutor:
    """What queues it, in its folder."""
    folder = submission.folder / FOLDER
    return make_executor(folder, slurm, submission.machines, submission.gpus, name)


def other_ways(submission: Submission, slurm: Slurm, run_net: Path) -> str:
    """The same run by torchrun and by srun, as commands."""
    arguments = submission.command(run_net)[1:]
    processes = max(1, submission.gpus)
    meeting = ["--standalone"]
    if submission.machines > 1:
        meeting = ["--nnodes", str(submission.machines), "--rdzv_backend", "c10d"]
        meeting += ["--rdzv_endpoint", "FIRST_MACHINE:29500"]
    torchrun = ["torchrun", *meeting, "--nproc_per_node", processes, *arguments]
    gpus = ["--gpus-per-node", submission.gpus] if submission.gpus else []
    srun = ["srun", "--partition", slurm.partition, "--nodes", submission.machines]
    srun += ["--ntasks-per-node", processes, *gpus, "--cpus-per-task", slurm.cpus]
    srun += [sys.executable, *arguments]
    where = "on each machine" if submission.machines > 1 else "here"
    lines = (shlex.join(map(str, way)) for way in (torchrun, srun))
    return "{}:\n\n    {}\n\nor where SLURM is:\n\n    {}".format(where, *lines)
