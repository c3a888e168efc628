"""Run a recipe: check the recipe, train and test a model, and write result.json."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from multigrid import MultigridError
from slowfast_patches.config import check_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.recipe_cycles import check_world_size, learning_rate_of
from slowfast_patches.datasets.lists.dataset_lists import (
    class_names,
    list_digest,
    list_path,
    read_list,
)
from slowfast_patches.datasets.lists.list_checks import list_warnings
from slowfast_patches.datasets.lists.overlaps import Overlap, find_overlaps
from slowfast_patches.datasets.loader import build_dataset
from slowfast_patches.datasets.protocol import VideoDataset
from slowfast_patches.datasets.reading.frames import is_frames
from slowfast_patches.launch.device import check_gpus, set_up_device
from slowfast_patches.launch.launch import launch
from slowfast_patches.launch.placement import Placement
from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.models.build_model import build_on_meta, weight_files
from slowfast_patches.models.freeze import frozen_names
from slowfast_patches.models.weights import check_file, local_file
from slowfast_patches.plan.evaluations import evaluation_share
from slowfast_patches.plan.facts import splits_of
from slowfast_patches.plan.flops import check_shapes, flops_per_clip
from slowfast_patches.plan.recipe_schedule import schedule_of
from slowfast_patches.plan.run_identity import Identity, run_identity
from slowfast_patches.plan.schedule_picture import plot_plan
from slowfast_patches.plan.training_plan import Plan, format_plan, plan_summary, plan_warnings
from slowfast_patches.seams import CLIP_TRANSFORMS, used_hooks
from slowfast_patches.tasks import task_of
from slowfast_patches.train.build_trainer import build_trainer
from slowfast_patches.train.checkpoint import RESULTS, describe_last, last_checkpoint
from slowfast_patches.train.hooks import settle_best
from slowfast_patches.train.multi_view_test import multi_view_test, tested_file
from slowfast_patches.train.record.log import setup_logging
from slowfast_patches.train.result import write_result
from slowfast_patches.train.resume import check_same_scores, continues, find_resumable
from slowfast_patches.train.trainer import Hook, Trainer
from slowfast_patches.utils.distributed import World, gather_objects
from slowfast_patches.utils.errors import RunError, UserError, is_bug
from slowfast_patches.utils.files import TEMPORARY, write_text
from slowfast_patches.utils.interruption import TrainingInterruptedError
from slowfast_patches.utils.lock import locked
from slowfast_patches.utils.signals import finished
from slowfast_patches.utils.storage import as_path
from slowfast_patches.utils.tables import format_flops

logger = logging.getLogger(__name__)

_LOOKED_AT = 20
"""Number of videos, spread over a list, of which at least one must exist."""


def run(recipe: Recipe, init_method: str | None = None, hooks: Sequence[Hook] = ()) -> None:
    """Check a recipe, then train and test its model on all processes of the run.

    Args:
        recipe: The recipe, from `load_recipe`.
        init_method: Address of the rendezvous of several machines, such as tcp://HOST:PORT.
        hooks: Hooks to call in every process at each iteration. They must be picklable if this call
            starts more than one process.

    Raises:
        ValueError: The recipe has a mistake. It is raised before the training starts.
        SystemExit: One of several processes failed. That process has logged the error.
    """
    launch(recipe, init_method, partial(_main, hooks=hooks), _check)


# Checks and preparations before any process trains.


def _check(recipe: Recipe, placement: Placement) -> None:
    """Raise an error for mistakes that can be found before the processes start."""
    check_recipe(recipe)
    check_gpus(recipe, placement)
    if not recipe.train.enable and not recipe.test.enable:
        raise UserError("TRAIN.ENABLE and TEST.ENABLE are False. Set one of them True.")
    resumes = continues(recipe) and last_checkpoint(recipe.output_dir) is not None
    if recipe.train.enable:
        _check_training(recipe, resumes)
    if recipe.test.enable:
        _count_videos(recipe, "test")
    if placement.first_rank == 0:
        _check_files_of_main(recipe, resumes)


def _check_training(recipe: Recipe, resumes: bool) -> None:
    """Check the settings of a training, without reading the checkpoints in OUTPUT_DIR."""
    if not resumes:
        class_names(recipe)  # raises an error if the number of names is not MODEL.NUM_CLASSES
    schedule = schedule_of(recipe, _count_videos(recipe, "train"))
    _count_videos(recipe, "val")
    check_world_size(recipe, schedule)
    check_shapes(recipe, schedule.shapes)
    smallest = min(schedule.shapes, key=lambda shape: shape.frames * shape.crop)
    for transform in CLIP_TRANSFORMS:
        if recipe[transform.switch]:
            transform.check(recipe, smallest.frames, smallest.crop)
    given = recipe.train.checkpoint_file_path
    if recipe.train.freeze:
        frozen_names(build_on_meta(recipe), recipe.train.freeze)
        if not given and weight_files(recipe) is None:
            raise UserError(
                f"TRAIN.FREEZE {','.join(recipe.train.freeze)} would freeze random weights. Set "
                "TRAIN.CHECKPOINT_FILE_PATH to pretrained weights, or the model's own key for them."
            )
    if recipe.train.checkpoint_inflate and not given:
        raise UserError(
            "TRAIN.CHECKPOINT_INFLATE is True, but there are no weights to inflate. Set "
            "TRAIN.CHECKPOINT_FILE_PATH to image weights, or set TRAIN.CHECKPOINT_INFLATE False to "
            "start from scratch."
        )


def _check_files_of_main(recipe: Recipe, resumes: bool) -> None:
    """Check the files that only rank 0 reads, in rank 0 or in the process that starts rank 0."""
    task_of(recipe).check_files()
    if not recipe.train.enable:
        path = tested_file(recipe)
        check_file(path)
        check_same_scores(recipe, local_file(path))
        return
    for hook in used_hooks(recipe):
        if hook.check is not None:
            hook.check(recipe)
    if recipe.train.checkpoint_file_path and not resumes:
        check_file(recipe.train.checkpoint_file_path)
    with locked(recipe.output_dir):  # raises an error if another run has the lock
        pass


def _count_videos(recipe: Recipe, split: str) -> int:
    """Return the number of videos in the list of a split.

    Raises:
        ValueError: The list cannot be parsed, or none of the videos that are looked up exists.
    """
    videos = read_list(recipe, split)
    # Look up videos from the whole list, because neighbours often have the same video or class.
    step = max(1, len(videos) // _LOOKED_AT)
    looked_at = (videos[number] for number in range(0, len(videos), step))
    paths = [*dict.fromkeys(video.path for video in looked_at if hasattr(video, "path"))]
    if paths and not any(as_path(path).exists() or is_frames(path) for path in paths):
        raise UserError(
            f"None of {len(paths)} videos that were looked up in {list_path(recipe, split)} "
            f"exists, for example {paths[0]}. Set DATA.PATH_PREFIX to the folder that precedes the "
            "paths in the list."
        )
    return len(videos)


# In each process.


def _main(recipe: Recipe, world: World, hooks: Sequence[Hook]) -> None:
    """Train and test as one process of the run."""
    set_up_device(recipe)
    trains, tests = recipe.train.enable, recipe.test.enable
    with locked(recipe.output_dir) if trains and world.is_main else nullcontext():
        setup_logging(recipe.output_dir, world, "train" if trains else "test")
        logger.info(
            "World size %d, global batch size %d, SOLVER.BASE_LR %g, TRAIN.MIXED_PRECISION %s",
            *(world.size, recipe.base_shape.batch, recipe.solver.base_lr),
            recipe.train.mixed_precision,
        )
        overlaps = _check_lists(recipe, ["train", "val"] * trains + ["test"] * tests, world)
        stop = StopRequest(world, timedelta(seconds=recipe.dist_timeout_seconds))
        with _last_checkpoint_named(recipe), stop if trains else nullcontext():
            datasets = {split: build_dataset(recipe, split) for split in splits_of(recipe)}
            identity = run_identity(recipe, datasets) if world.is_main else None
            trained = None
            if trains:
                trained = _train(recipe, world, stop, hooks, identity, datasets)
            tested = None if trains else datasets.get("test")  # else videos may have changed
            del datasets
            with trained.clock.time("testing") if trained else nullcontext():
                metrics = {}
                if tests:
                    metrics = multi_view_test(recipe, world, trained, overlaps, tested)
            if trained and tests:
                for hook in trained.hooks:
                    hook.after_test(trained, metrics)
            if world.is_main:
                assert identity is not None
                write_result(recipe, world, identity, trained, metrics, overlaps)
            finished.set()


def _check_lists(recipe: Recipe, splits: Sequence[str], world: World) -> list[Overlap]:
    """Check that all ranks have the same lists, and log warnings about the lists on the main rank.

    Returns:
        The videos that several lists have in common. On other ranks, an empty list.

    Raises:
        RunError: The lists of two ranks differ. All ranks raise the error.
    """
    lists = {split: read_list(recipe, split) for split in splits}
    for split, videos in lists.items():
        _check_same_list(recipe, split, videos)
    if not world.is_main:
        return []
    overlaps = find_overlaps(lists)
    texts = [
        text for split, videos in lists.items() for text in list_warnings(recipe, split, videos)
    ]
    for text in (*texts, *overlaps):
        logger.warning("%s", text)
    return overlaps


def _check_same_list(recipe: Recipe, split: str, videos: Sequence[Any]) -> None:
    """Raise RunError in all ranks if the lists of two ranks differ."""
    local = (
        list_digest(recipe, videos, split),
        f"{list_path(recipe, split)} ({len(videos)} videos)",
    )
    (digest, path), *others = gather_objects(local)
    for rank, (other_digest, other_path) in enumerate(others, 1):
        if other_digest != digest:
            raise RunError(
                f"The list {other_path} of rank {rank} differs from the list {path} of rank 0. Use "
                "the same list on all machines, with the same paths, labels and order.",
                everywhere=True,
            )


def _train(
    recipe: Recipe,
    world: World,
    stop: StopRequest,
    hooks: Sequence[Hook],
    identity: Identity | None,
    datasets: Mapping[str, VideoDataset],
) -> Trainer:
    """Build the trainer, resume from a checkpoint if there is one, and train to the end."""
    resumable = find_resumable(recipe, identity) if identity else None
    options: dict[str, Any] = {"identity": identity, "datasets": datasets}
    trainer = build_trainer(recipe, world, stop, resumable, hooks, **options)
    if world.is_main:
        if not recipe.train.keep_best:
            settle_best(recipe.output_dir, trainer.progress, keep=False)
        _prepare_folder(recipe, trainer)
    trainer.train()
    return trainer


def _prepare_folder(recipe: Recipe, trainer: Trainer) -> None:
    """Write config.yaml and the plan to OUTPUT_DIR, and delete old results."""
    folder = Path(recipe.output_dir)
    names = [*RESULTS, *filter(None, [recipe.test.save_results_path])]
    for path in [*(folder / name for name in names), *folder.glob(f"checkpoints/*{TEMPORARY}")]:
        path.unlink(missing_ok=True)
    write_text(folder / "config.yaml", recipe.text)
    if trainer.progress.iteration == 0 or trainer.progress.changes:
        _write_plan(recipe, trainer, folder)


def _write_plan(recipe: Recipe, trainer: Trainer, folder: Path) -> None:
    """Write the plan as text, JSON and a picture, and log a summary of the plan."""
    schedule = trainer.schedule
    flops = flops_per_clip(recipe)
    plan = Plan(schedule, flops, evaluations=evaluation_share(recipe, schedule, flops))
    write_text(folder / "plan.txt", format_plan(plan) + "\n")
    write_text(folder / "plan.json", json.dumps(plan.to_json(), indent=2))
    plot_plan(schedule, learning_rate_of(recipe), folder / "plan.png")
    if recipe.log_model_info:
        base = schedule.base
        logger.info(
            "%s has %d parameters. In training, a clip of %d frames of %d² takes %s.",
            *(recipe.model.arch, sum(p.numel() for p in trainer.stepper.model.parameters())),
            *(base.frames, base.crop, format_flops(flops(base.frames, base.crop))),
        )
    logger.info("%s", plan_summary(plan))
    for text in plan_warnings(schedule):
        logger.warning("%s", text)


@contextmanager
def _last_checkpoint_named(recipe: Recipe) -> Iterator[None]:
    """Add the last checkpoint to errors that end a training, except to bugs and wrong keys.

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
        is_wrong_key = isinstance(error, MultigridError) and not isinstance(error, RunError)
        if recipe.train.enable and not is_bug(error) and not is_wrong_key:
            error.add_note(f"{describe_last(recipe.output_dir)} Repeat the command to resume.")
        raise
