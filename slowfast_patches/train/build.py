"""Resolve a recipe into the parts of a training: stepper, schedule, mini-batches and hooks."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch

from multigrid import Batch, Schedule, ScheduleStep, form_bn_process_groups, form_groups
from slowfast_patches.config.metrics import EMA, metric_names
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import recipe_at
from slowfast_patches.datasets.lists.dataset_lists import label_counts, list_digest, list_path
from slowfast_patches.datasets.loader import (
    build_dataset,
    limit_workers,
    training_bytes,
    training_loader,
)
from slowfast_patches.datasets.protocol import VideoDataset
from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.models.build import build_model
from slowfast_patches.models.weights import load_weights
from slowfast_patches.plan.evaluations import (
    checkpoint_iterations,
    evaluation_iterations,
    phase_ends,
)
from slowfast_patches.plan.recipe_schedule import schedule_of
from slowfast_patches.train.checkpoint import to_cpu
from slowfast_patches.train.dry_run import DryRun
from slowfast_patches.train.evaluate import Validation
from slowfast_patches.train.hooks import (
    Facts,
    KeepBest,
    SaveCheckpoint,
    StopOnSignal,
    Validate,
    WrapInDDP,
    restore,
)
from slowfast_patches.train.record.log_metrics import LogMetrics
from slowfast_patches.train.record.progress_bar import ProgressBar
from slowfast_patches.train.record.tables import names_of_data
from slowfast_patches.train.record.tracker import Tracker
from slowfast_patches.train.resume import Resumable, check_same_data
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
) -> Trainer:
    """Build the parts of a training, and resume from a checkpoint or load the given weights.

    Every process of the run must call this.

    Args:
        recipe: The recipe of the training.
        world: Rank, world size and device of this process.
        stop: Stop requests of all processes.
        resumable: The checkpoint to resume from, or None. Only the main process needs it.
        hooks: Hooks of the user.

    Raises:
        ValueError: The checkpoint was trained on another list or schedule, or the weights do not
            match the model.
    """
    dataset = build_dataset(recipe, "train")
    schedule = schedule_of(recipe, len(dataset))
    loading = limit_workers(recipe, training_bytes(schedule, world.size))
    stepper = _build_stepper(recipe, world, dataset)
    patience = timedelta(seconds=recipe.dist_stall_seconds)
    form_groups(schedule, patience)
    if recipe.bn.use_precise_stats:
        form_bn_process_groups(world.size, patience)

    def batches(start: int) -> Iterable[Batch]:
        return training_loader(loading, dataset, schedule, start, world.rank, world.size)

    train = recipe.train
    folder = recipe.output_dir
    evaluated = frozenset(evaluation_iterations(recipe, schedule))
    saved = checkpoint_iterations(recipe, schedule) | evaluated
    validation = Validation(loading, world, stop, dataset, schedule)
    facts = _facts(recipe, schedule, dataset, resumable)
    log = LogMetrics(recipe, saved)
    save = SaveCheckpoint(folder, saved, facts, train.checkpoints_kept, phase_ends(schedule))
    metric = metric_names(recipe)[0] + EMA * (stepper.average is not None)
    in_order: list[Hook] = [
        DryRun(),
        WrapInDDP(),
        *hooks,  # before the log and the checkpoint, for which a hook may set `should_save`
        log,
        ProgressBar(log, closes_after=evaluated),
        save,  # before the validation, which may fail
        StopOnSignal(),
        Validate(evaluated, partial(validation, stepper.models), log.log_evaluation),
        *([KeepBest(folder, metric, facts)] if train.keep_best else []),
        save,  # again, with the metrics and the running statistics of precise BN
        *([Tracker(recipe, saved)] if train.tracker else []),
    ]
    trainer = Trainer(stepper, schedule, batches, in_order, world=world, stop=stop)
    _set_start(recipe, trainer, resumable)
    return trainer


def _build_stepper(recipe: Recipe, world: World, dataset: VideoDataset) -> Stepper:
    torch.manual_seed(recipe.rng_seed)
    # Precise BN needs grouped BN. Without a group size, grouped BN equals ordinary BN.
    model = build_model(recipe, grouped_bn=True).to(world.device)
    weighted = recipe.solver.class_weights
    counts = label_counts(recipe, dataset.videos) if weighted else None
    return Stepper(recipe, model, world.device, counts)


def _facts(
    recipe: Recipe, schedule: Schedule, dataset: VideoDataset, resumable: Resumable | None
) -> Facts:
    """Return a function that returns the fields of a checkpoint that describe the run and its data.

    Raises:
        ValueError: The checkpoint was trained on another list or schedule.
    """
    constant = {
        "cfg": recipe.text,
        "phases": schedule.phase_lines(),
        "num_videos": len(dataset),
        "list_digest": list_digest(recipe, dataset.videos),
        "class_names": names_of_data(recipe),
    }
    if resumable is not None:
        check_same_data(resumable, list_path(recipe, "train"), constant)
        constant["class_names"] = constant["class_names"] or resumable.checkpoint.class_names

    def facts(step: ScheduleStep) -> dict[str, Any]:
        now = recipe_at(recipe, schedule, step.iteration).text
        return {**constant, "epoch": step.epoch, "cfg_at_iteration": now}

    return facts


def _set_start(recipe: Recipe, trainer: Trainer, resumable: Resumable | None) -> None:
    """Restore a checkpoint, or load the weights of TRAIN.CHECKPOINT_FILE_PATH."""
    train = recipe.train
    world = trainer.world
    if resumable is not None:
        path, found = resumable
        logger.info("Resuming after iteration %d from %s.", found.iteration, path)
        by_process = recipe.model.has_batchnorm and not recipe.groups_batchnorm
        if found.world_size != world.size and by_process:
            logger.warning(
                "The checkpoint was trained on %d processes, and this run has %d. BN normalizes "
                "over the clips of each process, so the results change. Set BN.GROUP_SIZE to make "
                "the results independent of the number of processes.",
                *(found.world_size, world.size),
            )
    checkpoint = broadcast_from_main(lambda: resumable and resumable.checkpoint)
    if checkpoint is not None:
        restore(trainer, checkpoint)
    elif train.checkpoint_file_path:
        model = trainer.stepper.model
        if world.is_main:
            load_weights(model, train.checkpoint_file_path, inflate=train.checkpoint_inflate)
        weights = broadcast_from_main(lambda: to_cpu(model.state_dict()))
        for each in trainer.stepper.models:
            each.load_state_dict(weights)
