"""Resolve a recipe into the parts of a training: stepper, schedule, mini-batches and hooks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import torch

from multigrid import Batch, Schedule, ScheduleStep, form_bn_process_groups, form_groups
from slowfast_patches.config.metrics import EMA, metric_names
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.recipe_cycles import recipe_at
from slowfast_patches.datasets.lists.dataset_lists import label_counts
from slowfast_patches.datasets.loader import (
    build_dataset,
    limit_workers,
    training_bytes,
    training_loader,
)
from slowfast_patches.datasets.protocol import VideoDataset
from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.models.build_model import build_model
from slowfast_patches.models.weights import load_weights
from slowfast_patches.plan.evaluations import (
    checkpoint_iterations,
    evaluation_iterations,
    phase_ends,
)
from slowfast_patches.plan.recipe_schedule import schedule_of
from slowfast_patches.plan.run_identity import Identity, clock_text, run_identity
from slowfast_patches.seams import used_hooks
from slowfast_patches.train.checkpoint import Metadata, restore, to_cpu
from slowfast_patches.train.dry_run import DryRun
from slowfast_patches.train.evaluate import Validation
from slowfast_patches.train.hooks import (
    Agree,
    KeepBest,
    LossGuard,
    SaveCheckpoint,
    StopOnSignal,
    UnreadableGuard,
    Validate,
    WrapInDDP,
)
from slowfast_patches.train.record.log import shows_bars
from slowfast_patches.train.record.log_metrics import LogMetrics
from slowfast_patches.train.record.progress_bar import ProgressBar
from slowfast_patches.train.record.result_tables import names_of_data
from slowfast_patches.train.resume import Resumable, note_clock
from slowfast_patches.train.step import Stepper
from slowfast_patches.train.trainer import Hook, Trainer
from slowfast_patches.utils.distributed import World, broadcast_from_main

logger = logging.getLogger(__name__)


def build_trainer(
    recipe: Recipe,
    world: World,
    stop: StopRequest,
    resumable: Resumable | None = None,
    hooks: Sequence[Hook] = (),
    *,
    identity: Identity | None = None,
    datasets: Mapping[str, VideoDataset] | None = None,
) -> Trainer:
    """Build the parts of a training, and resume from a checkpoint or load the given weights.

    The recipe becomes the data set, the number of its videos the schedule, and both the loader.
    Every process of the run must call this.

    Args:
        recipe: The recipe of the training.
        world: Rank, world size and device of this process.
        stop: Stop requests of all processes.
        resumable: The checkpoint to resume from, or None. Only the main process needs it.
        hooks: Hooks of the user.
        identity: The identity of the run. Only the main process needs it. By default, it does not
            include the video files.
        datasets: The data sets of the splits that have been read.

    Raises:
        ValueError: The weights do not match the model.
    """
    datasets = datasets or {}
    dataset = datasets.get("train") or build_dataset(recipe, "train")
    if identity is None and world.is_main:
        identity = run_identity(recipe, clips=False)
    schedule = schedule_of(recipe, len(dataset))
    loading = limit_workers(recipe, training_bytes(schedule, world.size))
    stepper = _build_stepper(recipe, world, dataset)
    _form_process_groups(recipe, schedule, world)

    def batches(start: int) -> Iterable[Batch]:
        return training_loader(loading, dataset, schedule, start, world.rank, world.size)

    validation = Validation(loading, world, stop, dataset, schedule, datasets.get("val"))
    validate = partial(validation, stepper.models)
    metadata = _metadata(recipe, schedule, dataset, identity, resumable)
    is_averaged = stepper.average is not None
    in_order = _build_hooks(recipe, schedule, validate, metadata, hooks, is_averaged=is_averaged)
    trainer = Trainer(stepper, schedule, batches, in_order, world=world, stop=stop)
    _set_start(recipe, trainer, resumable)
    if identity is not None:
        note_clock(trainer.progress, clock_text(identity))
    return trainer


def _form_process_groups(recipe: Recipe, schedule: Schedule, world: World) -> None:
    """Form the process groups in which ranks share BN statistics."""
    timeout = timedelta(seconds=recipe.dist_timeout_seconds)
    form_groups(schedule, timeout)
    if recipe.bn.use_precise_stats:
        form_bn_process_groups(world.size, timeout)


def _build_hooks(
    recipe: Recipe,
    schedule: Schedule,
    validate: Callable[[ScheduleStep], Mapping[str, float]],
    metadata: Metadata,
    hooks: Sequence[Hook],
    *,
    is_averaged: bool,
) -> list[Hook]:
    """Return all hooks of a training, in the order in which they are called.

    Args:
        recipe: The recipe of the training.
        schedule: The schedule of the training.
        validate: Function that takes the last iteration and returns the metrics.
        metadata: Function that returns the fields of a checkpoint that describe the run.
        hooks: Hooks of the user.
        is_averaged: Whether the averaged weights are validated, too.
    """
    evaluated = frozenset(evaluation_iterations(recipe, schedule))
    saved = checkpoint_iterations(recipe, schedule) | evaluated
    folder, kept = recipe.output_dir, recipe.train.checkpoints_kept
    log = LogMetrics(recipe, saved)
    save = SaveCheckpoint(folder, saved, metadata, kept, phase_ends(schedule))
    metric = metric_names(recipe)[0] + EMA * is_averaged
    return [
        DryRun(),
        WrapInDDP(),
        LossGuard(),
        UnreadableGuard(recipe.data.max_bad_fraction),
        *hooks,  # before the log and the checkpoint, for which a hook may set `should_save`
        Agree(),
        log,
        *([ProgressBar(log, closes_after=evaluated)] if shows_bars() else []),
        save,  # before the validation, which may fail
        StopOnSignal(),
        Validate(evaluated, validate, log.log_evaluation),
        *([KeepBest(folder, metric, metadata)] if recipe.train.keep_best else []),
        save,  # again, with the metrics and the running statistics of precise BN
        *(hook.build(recipe, saved) for hook in used_hooks(recipe)),
    ]


def _build_stepper(recipe: Recipe, world: World, dataset: VideoDataset) -> Stepper:
    torch.manual_seed(recipe.rng_seed)
    # Precise BN needs grouped BN. Without a group size, grouped BN equals ordinary BN.
    model = build_model(recipe, grouped_bn=True).to(world.device)
    weighted = recipe.solver.class_weights
    counts = label_counts(recipe, dataset.videos) if weighted else None
    return Stepper(recipe, model, world.device, counts)


def _metadata(
    recipe: Recipe,
    schedule: Schedule,
    dataset: VideoDataset,
    identity: Identity | None,
    resumable: Resumable | None,
) -> Metadata:
    """Return a function that returns the fields of a checkpoint that describe the run."""
    constant = {
        "cfg": recipe.text,
        "identity": identity.to_json() if identity else {},
        "num_videos": len(dataset),
        "class_names": names_of_data(recipe),
    }
    if resumable is not None:
        constant["class_names"] = constant["class_names"] or resumable.checkpoint.class_names

    def metadata(step: ScheduleStep) -> dict[str, Any]:
        now = recipe_at(recipe, schedule, step.iteration).text
        return {**constant, "epoch": step.epoch, "cfg_at_iteration": now}

    return metadata


def _set_start(recipe: Recipe, trainer: Trainer, resumable: Resumable | None) -> None:
    """Restore a checkpoint, or load the weights of TRAIN.CHECKPOINT_FILE_PATH."""
    train = recipe.train
    world = trainer.world
    if resumable is not None:
        path, found = resumable
        logger.info("Resuming after iteration %d from %s.", found.iteration, path)
    checkpoint = broadcast_from_main(lambda: resumable and resumable.checkpoint)
    if checkpoint is not None:
        restore(trainer, checkpoint)
        return
    trainer.progress.training = uuid4().hex[:16]
    if train.checkpoint_file_path:
        model = trainer.stepper.model
        if world.is_main:
            options: dict[str, Any] = {
                "inflate": train.checkpoint_inflate,
                "least": train.checkpoint_share,
            }
            load_weights(model, train.checkpoint_file_path, **options)
        weights = broadcast_from_main(lambda: to_cpu(model.state_dict()))
        for each in trainer.stepper.models:
            each.load_state_dict(weights)
