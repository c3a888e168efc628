"""Run a recipe: check the recipe, train and test a model, and write result.json."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from slowfast_patches import patching
from slowfast_patches.config import check_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import check_world_size, learning_rate_of
from slowfast_patches.datasets.lists.dataset_lists import (
    class_names,
    list_digest,
    list_path,
    read_list,
)
from slowfast_patches.datasets.lists.list_checks import list_warnings
from slowfast_patches.datasets.lists.overlaps import Overlap, find_overlaps
from slowfast_patches.launch.device import check_gpus, set_up_device
from slowfast_patches.launch.launch import launch
from slowfast_patches.launch.placement import Placement
from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.models.build import build_on_meta
from slowfast_patches.models.freeze import frozen_names
from slowfast_patches.models.pretrained import has_start_weights
from slowfast_patches.models.weights import check_file, local_file
from slowfast_patches.plan.evaluations import evaluation_share
from slowfast_patches.plan.flops import check_shapes, flops_per_clip
from slowfast_patches.plan.picture import plot_plan
from slowfast_patches.plan.plan import format_plan, make_plan, plan_summary, plan_warnings
from slowfast_patches.plan.recipe_schedule import schedule_of
from slowfast_patches.tasks import task_of
from slowfast_patches.train.build import build_trainer
from slowfast_patches.train.checkpoint import describe_last, last_checkpoint
from slowfast_patches.train.record.log import setup_logging
from slowfast_patches.train.record.tables import predictions_path
from slowfast_patches.train.record.tracker import check_tracker
from slowfast_patches.train.result import multi_view_test, tested_file, write_result
from slowfast_patches.train.resume import check_same_scores, continues, find_resumable
from slowfast_patches.train.trainer import Hook, Trainer
from slowfast_patches.utils.distributed import World, gather_objects
from slowfast_patches.utils.errors import RunError, TrainingInterruptedError, is_bug
from slowfast_patches.utils.files import TEMPORARY
from slowfast_patches.utils.lock import locked
from slowfast_patches.utils.signals import finished
from slowfast_patches.utils.storage import as_path

logger = logging.getLogger(__name__)

_LOOKED_AT = 20
"""Number of videos at the start of a list of which at least one must exist."""


def run(recipe: Recipe, init_method: str | None = None, hooks: Sequence[Hook] = ()) -> None:
    """Check a recipe, then train and test its model on all processes of the run.

    Args:
        recipe: The recipe, from `load_recipe`.
        init_method: Address of the rendezvous of several machines, such as tcp://HOST:PORT.
        hooks: Hooks to call in every process after each step and each validation. They must be
            picklable if this call starts more than one process.

    Raises:
        ValueError: The recipe has a mistake. It is raised before the training starts.
        SystemExit: One of several processes failed. That process has logged the error.
    """
    patching.apply()
    launch(recipe, init_method, partial(_main, hooks=hooks), _check)


# Before any process trains.


def _check(recipe: Recipe, placement: Placement) -> None:
    """Raise an error for mistakes that can be found before the processes start."""
    trains = recipe.train.enable
    # Warn and lock only where rank 0 runs: in rank 0, or in the process that starts rank 0.
    starts_main = placement.first_rank == 0
    check_recipe(recipe)
    check_gpus(recipe, placement)
    predictions_path(recipe, "" if trains else "test_")
    if not trains and not recipe.test.enable:
        raise ValueError("TRAIN.ENABLE and TEST.ENABLE are False. Set one of them True.")
    if starts_main:
        task_of(recipe).check_files()
    if trains:
        _check_training(recipe, starts_main)
    if recipe.test.enable:
        _count_videos(recipe, "test")
    if starts_main and trains:
        # Fail before processes are started if another run has the lock.
        with locked(recipe.output_dir):
            pass
    elif starts_main and recipe.test.enable:
        path, section = tested_file(recipe)
        check_file(path, section=section)
        check_same_scores(recipe, local_file(path))


def _check_training(recipe: Recipe, starts_main: bool) -> None:
    """Check the settings of a training run, without reading the checkpoints in OUTPUT_DIR."""
    resumes = continues(recipe) and last_checkpoint(recipe.output_dir)
    if not resumes:
        class_names(recipe)  # raises an error if the number of names is not MODEL.NUM_CLASSES
    schedule = schedule_of(recipe, _count_videos(recipe, "train"))
    _count_videos(recipe, "val")
    check_world_size(recipe, schedule)
    check_shapes(recipe, schedule.shapes)
    given = recipe.train.checkpoint_file_path
    if recipe.train.freeze:
        frozen_names(build_on_meta(recipe), recipe.train.freeze)
        if not (given or (recipe.model.family.is_transformer and has_start_weights(recipe))):
            raise ValueError(
                f"TRAIN.FREEZE {','.join(recipe.train.freeze)} would freeze random weights. Set "
                "TRAIN.CHECKPOINT_FILE_PATH to pretrained weights. With MODEL.ARCH hf, you can set "
                "HF.MODEL to a folder of weights instead."
            )
    if recipe.train.checkpoint_inflate and not given:
        raise ValueError(
            "TRAIN.CHECKPOINT_INFLATE is True, but there are no weights to inflate. Set "
            "TRAIN.CHECKPOINT_FILE_PATH to image weights, or set TRAIN.CHECKPOINT_INFLATE False to "
            "start from scratch."
        )
    if starts_main:
        check_tracker(recipe)
    if given and starts_main and not resumes:
        check_file(given)


def _count_videos(recipe: Recipe, split: str) -> int:
    """Return the number of videos in the list of a split.

    Raises:
        ValueError: The list cannot be parsed, or none of the first videos in the list exists.
    """
    videos = read_list(recipe, split)
    different = (path for path, _ in groupby(getattr(v, "path", "") for v in videos) if path)
    paths = list(islice(different, _LOOKED_AT))
    if paths and not any(as_path(path).exists() for path in paths):
        raise ValueError(
            f"None of the first {len(paths)} videos in {list_path(recipe, split)} exists, for "
            f"example {paths[0]}. Set DATA.PATH_PREFIX to the folder that precedes the paths in "
            "the list."
        )
    return len(videos)


# In each process.


def _main(recipe: Recipe, world: World, hooks: Sequence[Hook]) -> None:
    """Train and test as one process of the run."""
    patching.apply()
    set_up_device(recipe)
    output_dir = recipe.output_dir
    trains = recipe.train.enable
    with locked(output_dir) if trains and world.is_main else nullcontext():
        setup_logging(output_dir, world, "train" if trains else "test")
        logger.info(
            "World size %d, global batch size %d, SOLVER.BASE_LR %g, TRAIN.MIXED_PRECISION %s",
            *(world.size, recipe.base_shape.batch, recipe.solver.base_lr),
            recipe.train.mixed_precision,
        )
        tests = recipe.test.enable
        overlaps = _check_lists(recipe, ["train", "val"] * trains + ["test"] * tests, world)
        stop = StopRequest(world, timedelta(seconds=recipe.dist_stall_seconds))
        with _last_checkpoint_named(recipe), stop if trains else nullcontext():
            trained = _train(recipe, world, stop, hooks) if trains else None
            with trained.clock.time("testing") if trained else nullcontext():
                metrics = multi_view_test(recipe, world, trained, overlaps) if tests else None
            if world.is_main:
                write_result(recipe, world, trained, metrics, overlaps)
            finished.set()


def _check_lists(recipe: Recipe, splits: Sequence[str], world: World) -> list[Overlap]:
    """Check that all ranks have the same lists, and log warnings about the lists on the main rank.

    Returns:
        The videos that several lists have in common. On other ranks, an empty list.

    Raises:
        RunError: The lists of two ranks differ. All ranks raise the error.
    """
    lists = {split: read_list(recipe, split) for split in splits}
    if world.size > 1:
        for split, videos in lists.items():
            _check_same_list(recipe, split, videos)
    if not world.is_main:
        return []
    overlaps = find_overlaps(lists)
    for split, videos in lists.items():
        for text in list_warnings(recipe, split, videos):
            logger.warning("%s", text)
    for overlap in overlaps:
        logger.warning("%s", overlap)
    return overlaps


def _check_same_list(recipe: Recipe, split: str, videos: Sequence[Any]) -> None:
    """Check that all ranks have the same list of videos.

    Raises:
        RunError: The lists of two ranks differ. All ranks raise the error.
    """
    of_rank = (len(videos), list_digest(recipe, videos, split), str(list_path(recipe, split)))
    (count, digest, path), *others = gather_objects(of_rank)
    for rank, (other_count, other_digest, other_path) in enumerate(others, 1):
        if (other_count, other_digest) != (count, digest):
            raise RunError(
                f"The list {other_path} of rank {rank} ({other_count} videos) differs from the "
                f"list {path} of rank 0 ({count} videos). Use the same list on all machines, "
                "with the same paths, labels and order.",
                everywhere=True,
            )


def _train(recipe: Recipe, world: World, stop: StopRequest, hooks: Sequence[Hook]) -> Trainer:
    """Build the trainer, resume from a checkpoint if there is one, and train to the end."""
    resumable = find_resumable(recipe) if world.is_main else None
    trainer = build_trainer(recipe, world, stop, resumable, hooks)
    if world.is_main:
        _prepare_folder(recipe, trainer)
    trainer.train()
    return trainer


def _prepare_folder(recipe: Recipe, trainer: Trainer) -> None:
    """Write config.yaml and the plan to OUTPUT_DIR, and delete old results."""
    folder = Path(recipe.output_dir)
    names = ("result.json", "result_classes.csv", "result_confusion.png")
    left = [*(folder / name for name in names), predictions_path(recipe)]
    for path in filter(None, [*left, *folder.glob(f"checkpoints/*{TEMPORARY}")]):
        path.unlink(missing_ok=True)
    (folder / "config.yaml").write_text(recipe.text, encoding="utf-8")
    if trainer.progress.iteration == 0 or trainer.progress.rate_changes:
        _write_plan(recipe, trainer, folder)


def _write_plan(recipe: Recipe, trainer: Trainer, folder: Path) -> None:
    """Write the plan as text, JSON and a picture, and log a summary of the plan."""
    schedule = trainer.schedule
    flops = flops_per_clip(recipe)
    plan = make_plan(schedule, flops, evaluations=evaluation_share(recipe, schedule, flops))
    (folder / "plan.txt").write_text(format_plan(plan) + "\n", encoding="utf-8")
    (folder / "plan.json").write_text(json.dumps(plan.to_json(), indent=2), encoding="utf-8")
    plot_plan(schedule, learning_rate_of(recipe), folder / "plan.png")
    if recipe.log_model_info:
        base = schedule.base
        logger.info(
            "%s has %d parameters and takes %.3g training FLOPs per clip of %d frames of %d².",
            *(recipe.model.arch, sum(p.numel() for p in trainer.stepper.model.parameters())),
            *(flops(base.frames, base.crop), base.frames, base.crop),
        )
    logger.info("%s", plan_summary(plan))
    for text in plan_warnings(schedule):
        logger.warning("%s", text)


@contextmanager
def _last_checkpoint_named(recipe: Recipe) -> Iterator[None]:
    """Name the last checkpoint in errors that end a training, except bugs and wrong keys.

    torch reports a killed worker by a RuntimeError in a signal handler, which can interrupt any
    statement. If the connection to the worker breaks first, multiprocessing raises a
    ConnectionError or EOFError.
    """
    try:
        try:
            yield
        except (ConnectionError, EOFError):
            time.sleep(0.5)  # the signal may still arrive, and would interrupt what follows
            raise
    except (Exception, TrainingInterruptedError) as error:
        if recipe.train.enable and not is_bug(error) and not isinstance(error, ValueError):
            error.add_note(f"{describe_last(recipe.output_dir)} Repeat the command to resume.")
        raise
