"""Run a recipe: check it, train, test, and write result.json."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from itertools import groupby, islice
from pathlib import Path

from slowfast_patches import patching
from slowfast_patches.config import check_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import check_world_size, learning_rate_of, schedule_of
from slowfast_patches.datasets.lists.dataset_lists import (
    class_names,
    list_digest,
    list_path,
    list_warnings,
    read_list,
)
from slowfast_patches.launch.device import check_gpus, set_up_device
from slowfast_patches.launch.launch import launch
from slowfast_patches.launch.placement import Placement
from slowfast_patches.launch.stopping import (
    StopRequest,
    TrainingStoppedError,
)
from slowfast_patches.launch.workers import JoiningError
from slowfast_patches.models.build import build_on_meta
from slowfast_patches.models.freeze import frozen_names
from slowfast_patches.models.transformer import has_start_weights
from slowfast_patches.models.weights import check_file
from slowfast_patches.plan.flops import check_shapes
from slowfast_patches.plan.picture import plot_plan
from slowfast_patches.plan.plan import format_plan, make_plan, plan_summary, plan_warnings
from slowfast_patches.train.checkpoint import (
    best_checkpoint,
    describe_last,
    explain_write_errors,
    last_checkpoint,
)
from slowfast_patches.train.record.log import setup_logging
from slowfast_patches.train.record.tables import predictions_path
from slowfast_patches.train.result import multi_view_test, tested_file, write_result
from slowfast_patches.train.resume import continues, find_resumable, start_over
from slowfast_patches.train.trainer import Hook, Trainer
from slowfast_patches.utils.distributed import World, gather_objects
from slowfast_patches.utils.files import TEMPORARY
from slowfast_patches.utils.lock import locked

logger = logging.getLogger(__name__)

_LOOKED_AT = 20
"""Videos of a list of which one at least must be there."""
_DEAD_WORKER = "DataLoader worker (pid"
"""The beginning of torch's error where a process that reads clips is gone."""


def run(recipe: Recipe, init_method: str | None = None, hooks: Sequence[Hook] = ()) -> None:
    """Check the recipe, then train and test it on all its processes.

    Args:
        recipe: what to train, as `load_recipe` returns it.
        init_method: where several machines meet, such as tcp://HOST:PORT.
        hooks: called after each step and each validation, in every process. They must be
            picklable where this call starts several processes.

    Raises:
        ValueError: the recipe is wrong. Raised before anything is trained.
        SystemExit: one of several processes failed and has logged why.
    """
    patching.apply()
    launch(recipe, init_method, partial(_main, hooks=hooks), _check)


# Before any process trains.


def _check(recipe: Recipe, placement: Placement) -> None:
    """Check what can be checked before any process trains."""
    trains = recipe.train.enable
    # This process is the main one, or starts it.
    starts_main = placement.first_rank == 0
    check_recipe(recipe)
    check_gpus(recipe, placement)
    predictions_path(recipe)
    if trains:
        _check_training(recipe, starts_main)
    if recipe.test.enable:
        _count_videos(recipe, "test", starts_main)
    if starts_main and trains:
        with locked(recipe.output_dir):  # refused before processes are started for nothing
            pass
    elif starts_main and recipe.test.enable:
        path, kind, section = tested_file(recipe)
        check_file(path, kind, section=section)


def _check_training(recipe: Recipe, starts_main: bool) -> None:
    """Check what can be checked without reading the checkpoints in OUTPUT_DIR."""
    resumes = continues(recipe) and last_checkpoint(recipe.output_dir)
    if not resumes:
        class_names(recipe)  # raises where their number is not MODEL.NUM_CLASSES
    schedule = schedule_of(recipe, _count_videos(recipe, "train", starts_main))
    _count_videos(recipe, "val", starts_main)
    check_world_size(recipe, schedule)
    check_shapes(recipe, schedule.shapes)
    given = recipe.train.checkpoint_file_path
    if recipe.train.freeze:
        frozen_names(build_on_meta(recipe), recipe.train.freeze)
        if not (given or (recipe.model.family.is_transformer and has_start_weights(recipe))):
            raise ValueError(
                f"TRAIN.FREEZE {','.join(recipe.train.freeze)} would keep random weights: set "
                "TRAIN.CHECKPOINT_FILE_PATH, or for MODEL.ARCH hf a folder of weights as HF.MODEL"
            )
    if recipe.train.checkpoint_inflate and not given:
        raise ValueError(
            "TRAIN.CHECKPOINT_INFLATE True has nothing to inflate: set TRAIN.CHECKPOINT_FILE_PATH, "
            "or CHECKPOINT_INFLATE False to start from scratch"
        )
    if given and starts_main and not resumes:
        check_file(given, recipe.train.checkpoint_type)


def _count_videos(recipe: Recipe, split: str, warns: bool) -> int:
    """Return the number of videos in a list, and log what is odd about it if `warns`.

    Raises:
        ValueError: the list cannot be parsed, or none of its first videos exists.
    """
    videos = read_list(recipe, split)
    different = (path for path, _ in groupby(getattr(v, "path", "") for v in videos) if path)
    paths = list(islice(different, _LOOKED_AT))
    if paths and not any(Path(path).exists() for path in paths):
        raise ValueError(
            f"none of the first videos of {list_path(recipe, split)} exists, such as {paths[0]}; "
            "set DATA.PATH_PREFIX to the folder that their paths start from"
        )
    if warns:
        for text in list_warnings(recipe, split, videos):
            logger.warning("%s", text)
    return len(videos)


# In each process.


def _main(recipe: Recipe, world: World, hooks: Sequence[Hook] = ()) -> None:
    """Train and test in one process of the run."""
    patching.apply()
    set_up_device(recipe)
    output_dir = recipe.output_dir
    trains = recipe.train.enable
    with locked(output_dir) if trains and world.is_main else nullcontext():
        setup_logging(output_dir, world, "train" if trains else "test")
        logger.info(
            "%d processes, %d clips in a mini-batch, SOLVER.BASE_LR %g, TRAIN.MIXED_PRECISION %s",
            *(world.size, recipe.base_shape.batch, recipe.solver.base_lr),
            recipe.train.mixed_precision,
        )
        tests = recipe.test.enable or not trains
        _check_same_lists(recipe, ["train", "val"] * trains + ["test"] * tests, world)
        stop = StopRequest(world, timedelta(seconds=recipe.dist_stall_seconds))
        with _dead_workers_explained(output_dir), stop if trains else nullcontext():
            trained = _train(recipe, world, stop, hooks) if trains else None
            tests = recipe.test.enable or not trains
            with trained.record.clock.time("testing") if trained else nullcontext():
                metrics = multi_view_test(recipe, world, trained) if tests else None
        if world.is_main:
            with explain_write_errors("the result", output_dir):
                write_result(recipe, world, trained, metrics)


def _check_same_lists(recipe: Recipe, splits: Sequence[str], world: World) -> None:
    """Check that all ranks have the same lists of videos.

    Raises:
        JoiningError: Two lists differ. All ranks raise it.
    """
    for split in splits if world.size > 1 else ():
        videos = read_list(recipe, split)
        of_rank = (len(videos), list_digest(recipe, videos, split), str(list_path(recipe, split)))
        (count, digest, path), *others = gather_objects(of_rank)
        for rank, (other_count, other_digest, other_path) in enumerate(others, 1):
            if (other_count, other_digest) != (count, digest):
                raise JoiningError(
                    f"{other_path} of rank {rank} ({other_count} videos) is not the list {path} of "
                    f"rank 0 ({count} videos). Give all machines the same paths, labels and order"
                )


def _train(recipe: Recipe, world: World, stop: StopRequest, hooks: Sequence[Hook]) -> Trainer:
    """Build the trainer, or resume it, and train to the end of its schedule."""
    resumable = None
    if world.is_main:
        with explain_write_errors("OUTPUT_DIR", recipe.output_dir):
            start_over(recipe)
        resumable = find_resumable(recipe)
    trainer = Trainer(recipe, world, stop, resumable, hooks=hooks)
    if world.is_main:
        with explain_write_errors("the plan", recipe.output_dir):
            _prepare_folder(trainer)
    trainer.train()
    return trainer


def _prepare_folder(trainer: Trainer) -> None:
    """Write config.yaml and the plan to OUTPUT_DIR.

    Results of a run that this one does not continue are deleted.
    """
    recipe = trainer.recipe
    folder = Path(recipe.output_dir)
    best = None if trainer.progress.best else best_checkpoint(folder)
    names = ("result.json", "result_classes.csv", "result_confusion.png")
    left = [*(folder / name for name in names), predictions_path(recipe), best]
    for path in filter(None, [*left, *folder.glob(f"checkpoints/*{TEMPORARY}")]):
        path.unlink(missing_ok=True)
    (folder / "config.yaml").write_text(recipe.text, encoding="utf-8")
    if trainer.progress.iteration == 0 or trainer.progress.rate_changes:
        _write_plan(trainer, folder)


def _write_plan(trainer: Trainer, folder: Path) -> None:
    """Write the plan as text, JSON and picture, and log its summary."""
    plan = make_plan(trainer.schedule, trainer.flops)
    (folder / "plan.txt").write_text(format_plan(plan) + "\n", encoding="utf-8")
    (folder / "plan.json").write_text(json.dumps(plan.to_json(), indent=2), encoding="utf-8")
    plot_plan(trainer.schedule, learning_rate_of(trainer.recipe), folder / "plan.png")
    if trainer.recipe.log_model_info:
        base = trainer.schedule.base
        logger.info(
            "%s: %d parameters, %.3g training FLOPs per clip of %d frames of %d²",
            *(trainer.recipe.model.arch, sum(p.numel() for p in trainer.model.parameters())),
            *(trainer.flops(base.frames, base.crop), base.frames, base.crop),
        )
    logger.info("%s", plan_summary(plan))
    for text in plan_warnings(trainer.schedule):
        logger.warning("%s", text)


@contextmanager
def _dead_workers_explained(output_dir: str) -> Iterator[None]:
    """Convert torch's error for a killed data loader worker to TrainingStoppedError.

    torch raises RuntimeError at any place, from a signal handler.
    """
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith(_DEAD_WORKER):
            raise
        raise TrainingStoppedError(
            f"a process that reads clips was killed; {describe_last(output_dir)}. "
            "Give the same command again to go on; if it was for memory, with a lower "
            "DATA_LOADER.NUM_WORKERS"
        ) from error
