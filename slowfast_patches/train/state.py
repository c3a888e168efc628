"""A run: what lives through a whole training, how it is built, and its checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from multigrid import Schedule, form_groups, form_neighbours
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import recipe_at, schedule_of
from slowfast_patches.datasets.lists.dataset_lists import list_digest, list_path
from slowfast_patches.datasets.loader import build_dataset, loading_advice
from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.models.build import build_model
from slowfast_patches.models.flops import flops_per_clip
from slowfast_patches.models.solver import load_optimizer
from slowfast_patches.models.weights import load_weights
from slowfast_patches.train.checkpoint import Checkpoint, Writer, snapshot
from slowfast_patches.train.evaluate import Validation
from slowfast_patches.train.record.clock import Clock
from slowfast_patches.train.record.record import Record
from slowfast_patches.train.record.tables import names_of_data
from slowfast_patches.train.resume import Resumable, check_same_list
from slowfast_patches.train.running_stats import set_buffers
from slowfast_patches.train.step import Stepper
from slowfast_patches.utils.distributed import World, from_main

__all__ = [
    "Run",
    "best_of",
    "build_run",
    "checkpoint_iterations",
    "evaluation_iterations",
    "phase_ends",
    "to_checkpoint",
]

logger = logging.getLogger(__name__)


@dataclass
class Run:
    """One model, one optimizer and one loader, alive through all shapes of a schedule.

    Everything about an iteration is `schedule.at(i)`; what is counted beside it is in the record.

    Attributes:
        models: the model and, where MODEL.EMA_DECAY asks for it, the average of its weights.
        evaluated_after, saved_after: numbers of finished iterations.
        start: iterations done before.
        evaluations: the metrics of each validation, as in result.json; `best` is the best of them.
        rate_changes: where the run was resumed with another learning rate, in words.
        evaluation_due: the run was stopped before, or in, the validation after its last iteration.
        seconds: of each activity until the last checkpoint, which a resumed run has too.
    """

    recipe: Recipe
    world: World
    stop: StopRequest
    dataset: Any
    schedule: Schedule
    stepper: Stepper
    models: nn.ModuleList
    validation: Validation
    record: Record
    writer: Writer
    list_digest: str
    class_names: tuple[str, ...] | None
    evaluated_after: frozenset[int]
    saved_after: frozenset[int]
    seconds: dict[str, float]
    start: int = 0
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)
    rate_changes: list[str] = field(default_factory=list)
    evaluation_due: bool = False

    @property
    def model(self) -> nn.Module:
        """The one that is trained."""
        return self.stepper.model

    @property
    def clock(self) -> Clock:
        """The record's."""
        return self.record.clock

    @cached_property
    def flops(self) -> Callable[[int, int], float]:
        """Training FLOPs of a clip of (frames, crop)."""
        return flops_per_clip(self.recipe)


def build_run(recipe: Recipe, world: World, stop: StopRequest, resumable: Resumable | None) -> Run:
    """A training at its start: where the main process's checkpoint was, at given weights, or from
    scratch. ValueError: the checkpoint is of another list, or weights do not fit."""
    run = _new_run(recipe, world, stop)
    if resumable is not None:
        path = list_path(recipe, "train")
        check_same_list(resumable, path, run.schedule.num_videos, run.list_digest)
        iteration = resumable.checkpoint.iteration
        logger.info("continuing after iteration %d, from %s", iteration, resumable.path)
    checkpoint = from_main(lambda: resumable and resumable.checkpoint)
    if checkpoint is not None:
        _restore(run, checkpoint)
    elif recipe.train.checkpoint_file_path:
        if world.is_main:
            file = recipe.train.checkpoint_file_path
            kind = recipe.train.checkpoint_type
            load_weights(run.model, file, kind=kind, inflate=recipe.train.checkpoint_inflate)
        weights = from_main(lambda: snapshot(run.model.state_dict()))
        for model in run.models:
            model.load_state_dict(weights)
    return run


def _new_run(recipe: Recipe, world: World, stop: StopRequest) -> Run:
    """From scratch. Every process calls this."""
    dataset = build_dataset(recipe, "train")
    schedule = schedule_of(recipe, len(dataset))
    validation = Validation(recipe, world, stop, dataset, schedule)
    torch.manual_seed(recipe.rng_seed)
    # Without a group size it is the host's BN, until precise BN takes whole mini-batches.
    model = build_model(recipe, grouped_bn=True).to(world.device)
    stepper = Stepper(recipe, model, world.device)
    average = stepper.average
    patience = timedelta(seconds=recipe.dist_stall_seconds)
    form_groups(schedule, patience)
    if recipe.bn.use_precise_stats:
        form_neighbours(world.size, patience)
    record = Record(recipe, world, schedule, loading_advice(recipe, dataset))
    return Run(
        recipe=recipe,
        world=world,
        stop=stop,
        dataset=dataset,
        schedule=schedule,
        stepper=stepper,
        models=nn.ModuleList([model] if average is None else [model, average]),
        validation=validation,
        record=record,
        writer=Writer(recipe.output_dir, recipe.train.checkpoints_kept, phase_ends(schedule)),
        list_digest=list_digest(recipe, dataset.videos) if world.is_main else "",
        class_names=names_of_data(recipe) if world.is_main else None,
        evaluated_after=evaluation_iterations(recipe, schedule),
        saved_after=checkpoint_iterations(recipe, schedule),
        seconds=record.clock.seconds,
    )


def to_checkpoint(run: Run, running_stats: Tensor | None = None) -> Checkpoint:
    """The state after the last iteration; `running_stats` of each rank, if they differ."""
    step = run.schedule.at(run.record.done - 1)
    average = run.stepper.average
    return Checkpoint(
        iteration=run.record.done,
        epoch=step.epoch,
        cfg=run.recipe.text,
        cfg_at_iteration=recipe_at(run.recipe, run.schedule, step.iteration).text,
        model_state=run.model.state_dict(),
        ema_state=None if average is None else average.state_dict(),
        optimizer_state=run.stepper.optimizer.state_dict(),
        scaler_state=run.stepper.precision.state_dict(),
        running_stats=running_stats,
        world_size=run.world.size,
        num_videos=len(run.dataset),
        list_digest=run.list_digest,
        class_names=run.class_names,
        seconds=run.seconds,
        evaluations=run.evaluations,
        best=run.best,
        rate_changes=run.rate_changes,
        evaluation_due=run.evaluation_due,
        unreadable=dict(run.record.unreadable.counts),
    )


def best_of(run: Run, last: Checkpoint) -> Checkpoint:
    """The best checkpoint, from `last`, the state after the best validation: the weights that were
    best, the averaged ones where there are, and nothing that only a training could continue with.
    """
    return replace(
        last,
        model_state=run.models[-1].state_dict(),
        ema_state=None,
        optimizer_state=None,
        scaler_state=None,
        running_stats=None,
    )


def _restore(run: Run, checkpoint: Checkpoint) -> None:
    """Take over the state of a checkpoint that `find_resumable` returned."""
    size = checkpoint.world_size
    by_process = run.recipe.model.has_batchnorm and not run.recipe.groups_batchnorm
    if size != run.world.size and run.world.is_main and by_process:
        text = (
            "trained on %d processes before, now on %d: BN statistics are over the clips of each "
            "process; BN.GROUP_SIZE would fix them"
        )
        logger.warning(text, size, run.world.size)
    run.model.load_state_dict(checkpoint.model_state)
    if run.stepper.average is not None:
        assert checkpoint.ema_state is not None
        run.stepper.average.load_state_dict(checkpoint.ema_state)
    set_buffers(run.models, checkpoint.running_stats, run.world)
    assert checkpoint.optimizer_state is not None
    assert checkpoint.scaler_state is not None
    load_optimizer(run.stepper.optimizer, checkpoint.optimizer_state)
    run.stepper.precision.load_state_dict(checkpoint.scaler_state)
    run.start = checkpoint.iteration
    run.evaluations = checkpoint.evaluations
    run.best = checkpoint.best
    run.rate_changes = checkpoint.rate_changes
    run.evaluation_due = checkpoint.evaluation_due
    run.class_names = run.class_names or checkpoint.class_names
    run.clock.load(checkpoint.seconds)
    run.seconds = run.clock.seconds
    run.record.unreadable.counts.update(checkpoint.unreadable)


def evaluation_iterations(recipe: Recipe, schedule: Schedule) -> frozenset[int]:
    """Numbers of finished iterations at which to validate: with the long cycle, MULTIGRID.EVAL_FREQ
    times in each phase; else every TRAIN.EVAL_PERIOD epochs and at the end."""
    if not recipe.multigrid.long_cycle:
        return _every(recipe.train.eval_period, schedule)
    times = recipe.multigrid.eval_freq
    return frozenset(
        phase.start + max(1, round(phase.iterations * (k + 1) / times))
        for phase in schedule.phases
        for k in range(times)
    )


def checkpoint_iterations(recipe: Recipe, schedule: Schedule) -> frozenset[int]:
    """Numbers of finished iterations at which to save: every CHECKPOINT_PERIOD epochs, and the ends
    of phases, the last of which is the end."""
    return _every(recipe.train.checkpoint_period, schedule) | phase_ends(schedule)


def phase_ends(schedule: Schedule) -> frozenset[int]:
    """Numbers of finished iterations at which a phase ends."""
    return frozenset(phase.stop for phase in schedule.phases)


def _every(epochs: int, schedule: Schedule) -> frozenset[int]:
    """The first iteration after each `epochs` epochs, and the last of all."""
    period = epochs * schedule.num_videos
    times = range(1, schedule.clips // period + 1)
    return frozenset(schedule.first_iteration_after(k * period) for k in times) | {
        schedule.iterations
    }
