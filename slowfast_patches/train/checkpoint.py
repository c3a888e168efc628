"""What a checkpoint holds, how it is taken from a run, and how a run goes on from it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from slowfast_patches.config.schedule import recipe_at
from slowfast_patches.models.solver import load_optimizer
from slowfast_patches.train.running_stats import set_buffers

if TYPE_CHECKING:
    from slowfast_patches.train.state import Run

__all__ = ["Checkpoint", "Progress", "best_of", "restore", "to_checkpoint"]

logger = logging.getLogger(__name__)

VERSION = 2
"""Of the fields of `Checkpoint`; other versions are refused."""


@dataclass(kw_only=True)
class Progress:
    """How far a training is.

    iteration: iterations that are done.
    seconds: of each activity of `Clock`, until the last checkpoint.
    evaluations, best: the metrics of each validation, and of the best one, as in result.json.
    rate_changes: where the run was resumed with another learning rate, in words.
    evaluation_due: whether the validation after the last iteration has still to be done.
    unreadable: numbers of unreadable videos by epoch.
    """

    iteration: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)
    rate_changes: list[str] = field(default_factory=list)
    evaluation_due: bool = False
    unreadable: dict[int, int] = field(default_factory=dict)


@dataclass(kw_only=True)
class Checkpoint(Progress):
    """The state of a training after an iteration. In the file it is a dict of these fields.

    epoch: of the last iteration.
    cfg, cfg_at_iteration: the recipe as YAML, and the same with the shape and rate that held.
    model_state, ema_state: of the model and of the average of its weights, if there is one.
    optimizer_state, scaler_state: None in the best checkpoint, which no training continues from.
    running_stats: BN statistics of each rank, (ranks, N), where they have not been averaged.
    phases: of the schedule, as `Schedule.phase_lines`.
    num_videos, list_digest: of the list of training videos.
    class_names: by class number, if the data set has names.
    """

    epoch: float
    cfg: str
    cfg_at_iteration: str
    model_state: dict[str, Tensor]
    ema_state: dict[str, Tensor] | None
    optimizer_state: dict[str, Any] | None
    scaler_state: dict[str, Any] | None
    running_stats: Tensor | None
    world_size: int
    phases: tuple[str, ...]
    num_videos: int
    list_digest: str
    class_names: tuple[str, ...] | None
    version: int = VERSION


def to_checkpoint(run: Run, running_stats: Tensor | None = None) -> Checkpoint:
    """The state after the last iteration; `running_stats` of each rank, if they differ."""
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


def best_of(run: Run, last: Checkpoint) -> Checkpoint:
    """The best checkpoint, from `last`, the state after the best validation: the weights that were
    best, the averaged ones where there are any, and nothing that only a training could use."""
    return replace(
        last,
        model_state=run.models[-1].state_dict(),
        ema_state=None,
        optimizer_state=None,
        scaler_state=None,
        running_stats=None,
    )


def restore(run: Run, checkpoint: Checkpoint) -> None:
    """Take over the state of a checkpoint that a training may continue from."""
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
