"""Submit a recipe or the runs of a study to SLURM.

Runs that already have a queued or running job are not submitted again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slowfast_patches.config import check_recipe, load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.scale import as_overrides
from slowfast_patches.datasets.lists.dataset_lists import list_path, read_list
from slowfast_patches.launch.launch import resolve
from slowfast_patches.launch.slurm import FOLDER, Slurm, batch_file
from slowfast_patches.models.weights import check_file
from slowfast_patches.plan.plan import format_plan, plan_of
from slowfast_patches.study.runs import Study, run_command
from slowfast_patches.utils.command_line import add_option, key_value, option_of
from slowfast_patches.utils.files import write_text

_JOBS = "jobs.json"
"""Name of the file with the job IDs, in the folder of the logs."""


_OPTIONS: dict[str, tuple[Callable[[str], float], str]] = {
    "hours": (float, "hours after which a job saves a checkpoint and is requeued"),
    "cpus": (int, "number of CPU cores per GPU, or per machine without GPUs"),
    "requeues": (int, "number of restarts after which a job does not requeue itself again"),
    "warning_seconds": (
        int,
        "seconds before the time limit at which the job is told to save a checkpoint; they must "
        "be enough for one iteration and the checkpoint",
    ),
    "limit": (int, "maximum number of jobs of an array that run simultaneously"),
}
"""Maps attributes of `Slurm` to the types and help texts of their options."""


def add_slurm_options(
    group: argparse._ActionsContainer, prefix: str, names: Iterable[str] = _OPTIONS
) -> None:
    """Add the options of a job.

    Args:
        group: Parser or argument group.
        prefix: Start of the names of the options, such as "slurm_".
        names: Attributes of `Slurm`.
    """
    for name in names:
        kind, text = _OPTIONS[name]
        text += f" (default: {getattr(Slurm, name):g})"
        add_option(group, option_of(prefix + name), "N", text, kind, argparse.SUPPRESS)
    text = "additional option of sbatch, such as account=vision; can be repeated"
    more: dict[str, Any] = {"action": "append", "dest": f"{prefix}options"}
    name = option_of(f"{prefix}option")
    add_option(group, name, "KEY=VALUE", text, key_value, argparse.SUPPRESS, **more)


def slurm_of(args: argparse.Namespace, partition: str, prefix: str, **more: Any) -> Slurm:
    """Return the resources that the options of `add_slurm_options` request.

    Args:
        args: Parsed arguments.
        partition: Name of the SLURM partition.
        prefix: Start of the names of the options.
        **more: Other attributes of `Slurm`.
    """
    given = {k.removeprefix(prefix): v for k, v in vars(args).items() if k.startswith(prefix)}
    values = {name: given[name] for name in _OPTIONS if name in given}
    return Slurm(partition, options=dict(given.get("options", ())), **values, **more)


def add_study_options(group: argparse._ActionsContainer, ways: argparse._ActionsContainer) -> None:
    """Add --slurm and the options for the SLURM jobs of a study.

    Args:
        group: Parser or argument group.
        ways: Group of mutually exclusive options to which --slurm is added.
    """
    add_option(ways, "--slurm", "PARTITION", "train as SLURM jobs in this partition")
    add_slurm_options(group, "slurm_")


def slurm_of_study(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Slurm | None:
    """Return the resources that the options of a study request, or None without --slurm."""
    if args.slurm:
        return slurm_of(args, args.slurm, "slurm_")
    for name in vars(args):
        if name.startswith("slurm_"):
            parser.error(f"{option_of(name)} has no effect without --slurm")
    return None


def job_keys(
    cfg_file: Path, overrides: Sequence[str], machines: int | None, gpus: int | None
) -> tuple[str, ...]:
    """Return the overrides that a job applies to its recipe.

    Args:
        cfg_file: Config file of the recipe.
        overrides: Alternating config keys and values given by the user.
        machines: Number of nodes, or None to use NUM_SHARDS of the recipe.
        gpus: Number of GPUs per node, or None to use NUM_GPUS of the recipe.

    Returns:
        Alternating config keys and values, including the absolute path of OUTPUT_DIR.

    Raises:
        ValueError: The recipe cannot be loaded, or `overrides` sets a key that the job or another
            argument sets.
    """
    options = {"NUM_SHARDS": machines, "NUM_GPUS": gpus}
    given = {key: value for key, value in options.items() if value is not None}
    for key in (*given, "SHARD_ID"):
        if key in overrides[::2]:
            raise ValueError(f"{key} is set by the options of the job. Do not set it.")
    folder = Path(load_recipe(cfg_file, overrides).output_dir).resolve()
    return (*overrides, *as_overrides({**given, "OUTPUT_DIR": folder}))


def check(written: Recipe, asked: Recipe) -> tuple[str, list[str]]:
    """Check a job before it is submitted, and describe the training.

    Missing data and weights only cause warnings, because the machine that submits the job may not
    have access to them.

    Args:
        written: Recipe with the numbers of machines and GPUs that it was written for.
        asked: Recipe with the numbers of machines and GPUs of the job.

    Returns:
        A tuple of the description and a list of warnings.

    Raises:
        ValueError: The recipe is invalid, or does not support this number of processes.
        ImportError: A package that the recipe needs is not installed.
    """
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
            f"the recipe's learning rates are for {own_batch} clips per iteration, but this job "
            f"has {batch}. To scale the batch size and the learning rates, set "
            "SOLVER.REFERENCE_WORLD_SIZE to the number of GPUs that the recipe was written for. To "
            f"scale only the learning rates, set SOLVER.REFERENCE_BATCH_SIZE {own_batch}"
        )
    if Path(recipe.output_dir, "result.json").is_file():
        texts.append(
            f"{recipe.output_dir} already has a finished run. The job would only repeat the test."
        )
    has_length = list_path(recipe, "train").is_file() or recipe.data.num_train_videos > 0
    if recipe.train.enable and has_length:
        texts.insert(0, f"{format_plan(plan_of(recipe))}\n")
    elif recipe.train.enable:
        warnings.append(
            "the training list is not on this machine, so the training cannot be planned. To see "
            "the plan, set DATA.NUM_TRAIN_VIDEOS to the number of training videos"
        )
    return "\n".join(texts), warnings


def _check_files(recipe: Recipe) -> list[str]:
    """Check the list files and weights of a recipe, and return a warning for each missing file."""
    if not recipe.data.path_to_data_dir:
        raise ValueError(
            "DATA.PATH_TO_DATA_DIR is not set. Set it to the folder that has the list files on the "
            "nodes."
        )
    hidden = list[Path]()
    for split in ["train", "val"] * recipe.train.enable + ["test"] * recipe.test.enable:
        if (path := list_path(recipe, split)).is_file():
            read_list(recipe, split)
        else:
            hidden.append(path)
    section, needed = ("TRAIN", recipe.train) if recipe.train.enable else ("TEST", recipe.test)
    if (weights := needed.checkpoint_file_path) and Path(weights).exists():
        check_file(weights, section=section)
    elif weights:
        hidden.append(Path(weights))
    return [
        f"{path} is not on this machine. It must exist on the nodes of the job" for path in hidden
    ]


def submit_study(study: Study, run_net: Path, slurm: Slurm) -> dict[str, str]:
    """Submit the missing runs of a study, and print their job IDs to standard error.

    Returns:
        Maps the folder of each submitted run, relative to the study's output folder, to its job ID.

    Raises:
        ValueError: SLURM is missing or rejects the jobs.
    """
    runs = dict[str, tuple[Recipe, list[str]]]()
    for arm, seed in study.missing():
        folder = study.folder(arm, seed)
        command = run_command(arm, seed, folder.resolve(), run_net.resolve())
        runs[str(folder.relative_to(study.output))] = (arm.recipe, command)
    queued = submit(runs, study.output, slurm)
    numbers = ", ".join(queued.values()) or "all runs are finished or already queued"
    print(f"{len(queued)} jobs submitted: {numbers}", file=sys.stderr)
    return queued


def submit(
    runs: Mapping[str, tuple[Recipe, Sequence[str]]], folder: Path, slurm: Slurm
) -> dict[str, str]:
    """Submit the runs that have no queued or running job, and store the job IDs.

    Runs with the same numbers of machines and GPUs form one job array.

    Args:
        runs: Maps the name of each run to its recipe and its command line.
        folder: Folder to store the job IDs and the logs in.
        slurm: Resources to request.

    Returns:
        Maps the name of each submitted run to its job ID.

    Raises:
        ValueError: SLURM is missing or rejects the jobs.
    """
    if shutil.which("sbatch") is None:
        raise ValueError(
            "This machine has no SLURM (no sbatch). To train without SLURM, use multigrid-train, "
            "multigrid-compare without --slurm or multigrid-reproduce --local."
        )
    logs = folder / FOLDER
    path = logs / _JOBS
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    active = _queued_jobs() if known else set()
    arrays: dict[tuple[int, int], list[str]] = defaultdict(list)
    for name, (recipe, _) in runs.items():
        if known.get(name) not in active:
            arrays[recipe.num_shards, recipe.num_gpus].append(name)
    queued = dict[str, str]()
    for names in arrays.values():
        logs.mkdir(parents=True, exist_ok=True)  # SLURM does not create the folder of a log.
        commands = [runs[name][1] for name in names]
        number = queue(batch_file(commands, runs[names[0]][0], slurm, logs))
        elements = [f"{number}_{n}" for n in range(len(names))] if len(names) > 1 else [number]
        queued |= dict(zip(names, elements, strict=True))
        write_text(path, json.dumps(known | queued))
    return queued


def queue(text: str) -> str:
    """Submit a batch file to SLURM, and return the ID of the job or of the job array.

    Raises:
        ValueError: SLURM rejects the batch file.
    """
    # sbatch would pass variables of the job in which this process may run to the new job.
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name == "SLURM_CONF" or not name.startswith("SLURM_")
    }
    said = _run("rejected the jobs", "sbatch", "--parsable", input=text, env=inherited)
    return said.split()[-1].partition(";")[0]  # "ID" or "ID;CLUSTER"


def _queued_jobs() -> set[str]:
    """Return the IDs of all jobs that are queued or running."""
    return set(_run("does not answer", "squeue", "--all", "--array", "--noheader", "-o%i").split())


def _run(failure: str, *command: str, **options: Any) -> str:
    """Run a command of SLURM, and return its output."""
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode:
        raise ValueError(f"SLURM {failure}: {done.stderr.strip()}. Nothing was submitted.")
    return str(done.stdout)
