"""The state of a training: how it is built, saved and restored."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn

from multigrid import Schedule, Step, form_groups, form_neighbours
from multigrid.cost import FlopsPerClip
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import recipe_at, schedule_of
from slowfast_patches.datasets.lists.dataset_lists import label_counts, list_digest, list_path
from slowfast_patches.datasets.loader import build_dataset, loading_advice
from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.models.build import build_model
from slowfast_patches.models.solver import load_optimizer
from slowfast_patches.models.weights import load_weights
from slowfast_patches.plan.evaluations import affordable_evaluations, epoch_ends
from slowfast_patches.plan.flops import flops_per_clip
from slowfast_patches.train.checkpoint import Checkpoint, Progress, to_cpu
from slowfast_patches.train.evaluate import Validation
from slowfast_patches.train.record.record import Record
from slowfast_patches.train.record.tables import names_of_data
from slowfast_patches.train.resume import Resumable, check_same_list, check_same_schedule
from slowfast_patches.train.running_stats import set_buffers
from slowfast_patches.train.step import Outcome, Stepper
from slowfast_patches.utils.distributed import World, broadcast_from_main

logger = logging.getLogger(__name__)


class Hook:
    """User code that the training calls in every process. Override the methods you need.

    To end the training, raise `TrainingStoppedError` in all processes alike. The last checkpoint
    stays, and the same command resumes from it.
    """

    def after_step(self, run: Run, step: Step, outcome: Outcome) -> None:
        """Act after an iteration, before it is saved or validated.

        Args:
            run: the training; `run.progress.iteration` iterations are done.
            step: the iteration's shape, learning rate and BN size.
            outcome: its loss, scores and labels, on the device.
        """

    def after_evaluation(self, run: Run, evaluation: Mapping[str, Any]) -> None:
        """Act after a validation, when it has been saved.

        Args:
            run: the training.
            evaluation: the entry that result.json lists under "evaluations".
        """


@dataclass
class Run:
    """One model, one optimizer and one loader, which live through all shapes of a schedule.

    Everything about iteration i follows from `schedule.at(i)`. The rest is in `progress`.

    Attributes:
        models: the model and, with MODEL.EMA_DECAY, the average of its weights.
        flops: training FLOPs of a clip of (frames, crop).
        evaluated_after: numbers of finished iterations after which to validate.
        saved_after: numbers of finished iterations after which to save.
        hooks: user code that is called after each step and each validation.
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
    list_digest: str
    class_names: tuple[str, ...] | None
    flops: FlopsPerClip
    evaluated_after: frozenset[int]
    saved_after: frozenset[int]
    progress: Progress = field(default_factory=Progress)
    hooks: Sequence[Hook] = ()

    @property
    def model(self) -> nn.Module:
        """The model that is trained."""
        return self.stepper.model


def build_run(recipe: Recipe, world: World, stop: StopRequest, resumable: Resumable | None) -> Run:
    """Build a training, resumed, from given weights or from scratch.

    Every process must call this.

    Args:
        recipe: what to train.
        world: this process among all.
        stop: tells whether the run was asked to stop.
        resumable: the checkpoint to resume from. Only the main process needs it.

    Raises:
        ValueError: the checkpoint is of another list or schedule, or weights do not fit.
    """
    dataset = build_dataset(recipe, "train")
    schedule = schedule_of(recipe, len(dataset))
    torch.manual_seed(recipe.rng_seed)
    # Without a group size it is the host's BN, until precise BN takes whole mini-batches.
    model = build_model(recipe, grouped_bn=True).to(world.device)
    counts = label_counts(recipe, dataset.videos) if recipe.solver.class_weights else None
    stepper = Stepper(recipe, model, world.device, counts)
    patience = timedelta(seconds=recipe.dist_stall_seconds)
    form_groups(schedule, patience)
    if recipe.bn.use_precise_stats:
        form_neighbours(world.size, patience)
    validation = Validation(recipe, world, stop, dataset, schedule)
    flops = flops_per_clip(recipe)
    evaluated = affordable_evaluations(recipe, schedule, len(validation.videos), flops)
    run = Run(
        recipe=recipe,
        world=world,
        stop=stop,
        dataset=dataset,
        schedule=schedule,
        stepper=stepper,
        models=nn.ModuleList(filter(None, [stepper.model, stepper.average])),
        validation=validation,
        record=Record(recipe, world, schedule, loading_advice(recipe, dataset)),
        list_digest=list_digest(recipe, dataset.videos) if world.is_main else "",
        class_names=names_of_data(recipe) if world.is_main else None,
        flops=flops,
        evaluated_after=frozenset(evaluated),
        saved_after=checkpoint_iterations(recipe, schedule),
    )
    _set_start(run, resumable)
    return run


def _set_start(run: Run, resumable: Resumable | None) -> None:
    """Restore the checkpoint, or load the weights that the recipe names."""
    train = run.recipe.train
    if resumable is not None:
        path = list_path(run.recipe, "train")
        check_same_list(resumable, path, run.schedule.num_videos, run.list_digest)
        check_same_schedule(resumable, run.schedule)
        iteration = resumable.checkpoint.iteration
        logger.info("continuing after iteration %d, from %s", iteration, resumable.path)
    checkpoint = broadcast_from_main(lambda: resumable and resumable.checkpoint)
    if checkpoint is not None:
        restore(run, checkpoint)
    elif train.checkpoint_file_path:
        if run.world.is_main:
            load_weights(
                run.model,
                train.checkpoint_file_path,
                kind=train.checkpoint_type,
                inflate=train.checkpoint_inflate,
            )
        weights = broadcast_from_main(lambda: to_cpu(run.model.state_dict()))
        for model in run.models:
            model.load_state_dict(weights)


def checkpoint_iterations(recipe: Recipe, schedule: Schedule) -> frozenset[int]:
    """Return the numbers of finished iterations at which to save.

    These are every CHECKPOINT_PERIOD epochs and the end of each phase.
    """
    return phase_ends(schedule).union(epoch_ends(recipe.train.checkpoint_period, schedule))


def phase_ends(schedule: Schedule) -> frozenset[int]:
    """Return the numbers of finished iterations at which a phase ends."""
    return frozenset(phase.stop for phase in schedule.phases)


def to_checkpoint(run: Run, running_stats: Tensor | None = None) -> Checkpoint:
    """Return the state after the last iteration.

    Args:
        run: the training.
        running_stats: BN statistics of each rank, if they differ.
    """
    step = run.schedule.at(run.progress.iteration - 1)
    average = run.stepper.average
    return Checkpoint(
        **vars(run.progress),
        epoch=step.epoch,
        cfg=run.recipe.text,
        cfg_at_iteration=recipe_at(run.recipe, run.schedule, step.iteration).text,
        model_state=run.model.state_dict(),
        ema_state=None if average is None else average.state_dict(),
        optimizer_state=run.stepper.optimizer.state_dict(),
        scaler_state=run.stepper.precision.state_dict(),
        running_stats=running_stats,
        world_size=run.world.size,
        phases=run.schedule.phase_lines(),
        num_videos=len(run.dataset),
        list_digest=run.list_digest,
        class_names=run.class_names,
    )


def best_of(run: Run) -> Checkpoint:
    """Return the best checkpoint, right after the best validation.

    It has the best weights, averaged ones if there are any, but nothing needed to resume.
    """
    return replace(
        to_checkpoint(run),
        model_state=run.models[-1].state_dict(),
        ema_state=None,
        optimizer_state=None,
        scaler_state=None,
        running_stats=None,
    )


def restore(run: Run, checkpoint: Checkpoint) -> None:
    """Restore the state of a checkpoint that can be resumed."""
    by_process = run.recipe.model.has_batchnorm and not run.recipe.groups_batchnorm
    if checkpoint.world_size != run.world.size and run.world.is_main and by_process:
        logger.warning(
            "trained on %d processes before, now on %d: BN statistics are over the clips of each "
            "process; BN.GROUP_SIZE would fix them",
            *(checkpoint.world_size, run.world.size),
        )
    run.model.load_state_dict(checkpoint.model_state)
    if run.stepper.average is not None:
        assert checkpoint.ema_state is not None
        run.stepper.average.load_state_dict(checkpoint.ema_state)
    set_buffers(run.models, checkpoint.running_stats, run.world)
    assert checkpoint.optimizer_state is not None
    assert checkpoint.scaler_state is not None
    load_optimizer(run.stepper.optimizer, checkpoint.optimizer_state)
    run.stepper.precision.load_state_dict(checkpoint.scaler_state)
    run.progress = Progress(**{f.name: getattr(checkpoint, f.name) for f in fields(Progress)})
    run.class_names = run.class_names or checkpoint.class_names
