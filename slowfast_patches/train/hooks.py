"""Hooks of every training: guards that end a bad run, checkpoints, stopping and validation."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from multigrid import Schedule, ScheduleStep, average_running_stats
from slowfast_patches.tasks.scores import check_count
from slowfast_patches.train.checkpoint import (
    DamagedError,
    Metadata,
    best_checkpoint,
    buffers_of_ranks,
    capture,
    diverged,
    load,
    move_best_checkpoint,
    save,
    set_buffers,
)
from slowfast_patches.train.parallel import in_parallel
from slowfast_patches.train.step import Outcome
from slowfast_patches.train.trainer import Hook, Progress, Trainer
from slowfast_patches.utils.distributed import sum_over_ranks

logger = logging.getLogger(__name__)


class WrapInDDP(Hook):
    """Wrap the network in DistributedDataParallel if there are several processes.

    This follows the dry steps, which each process takes alone.
    """

    def before_train(self, trainer: Trainer) -> None:
        if trainer.world.size > 1:
            stepper = trainer.stepper
            stepper.network = in_parallel(stepper.network, trainer.world.device)


class LossGuard(Hook):
    """End the run in all processes if the loss of any process is NaN or infinite."""

    def after_backward(self, trainer: Trainer, step: ScheduleStep, outcome: Outcome) -> None:
        """Check the loss.

        Raises:
            RunError: The loss of a process is not finite.
        """
        loss = float(sum_over_ranks(outcome.loss.clone()))
        if not math.isfinite(loss):
            raise diverged(
                f"The loss of iteration {step.iteration} is {loss} (shape {step.shape}, LR "
                f"{step.lr:.4g})"
            )


class UnreadableGuard(Hook):
    """Log unreadable videos, and end the run in all processes if an epoch has too many of them.

    Args:
        fraction: Maximum fraction of unreadable videos (DATA.MAX_BAD_FRACTION).
    """

    def __init__(self, fraction: float) -> None:
        self._fraction = fraction
        self._counts = dict[int, int]()  # number of unreadable videos by epoch

    def state_dict(self) -> dict[str, Any]:
        return {"unreadable": dict(self._counts)} if self._counts else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._counts = dict(state["unreadable"])

    def after_backward(self, trainer: Trainer, step: ScheduleStep, outcome: Outcome) -> None:
        """Count the unreadable videos of all processes.

        Raises:
            RunError: Too many videos of the epoch cannot be read.
        """
        for path, reason in outcome.failures:
            log_unreadable(path, reason, "another video is used instead")
        epochs = epochs_of(trainer.schedule, step)
        failed = outcome.failed_epochs or [epochs[0]] * len(outcome.failures)
        numbers = [failed.count(epoch) for epoch in epochs]
        if trainer.world.size > 1:
            total = sum_over_ranks(torch.tensor(numbers, device=trainer.world.device))
            numbers = total.tolist()
        count_unreadable(self._counts, trainer.schedule, step, numbers, self._fraction)


def is_due(trainer: Trainer, after: Collection[int]) -> bool:
    """Return whether to report and save after the current iteration.

    Args:
        trainer: The trainer.
        after: Numbers of finished iterations at which this is scheduled.
    """
    asked = trainer.should_save or trainer.should_stop or trainer.stop.agreed()
    return trainer.progress.iteration in after or asked


class SaveCheckpoint(Hook):
    """Save a checkpoint after given iterations, and when the run is asked to stop.

    The hook is in the list of hooks twice. The first checkpoint precedes the validation: if the run
    ends during the validation, the resumed run validates. The second one has the metrics, and the
    running statistics of precise BN that tests and predictions need.

    Args:
        output_dir: The folder of the run.
        after: Numbers of finished iterations.
        metadata: Function that returns the fields that describe the run and its data.
        kept: Number of newest checkpoints to keep. 0 keeps all checkpoints.
        milestones: Iterations whose checkpoints are never deleted.
    """

    def __init__(
        self,
        output_dir: str,
        after: Collection[int],
        metadata: Metadata,
        kept: int = 0,
        milestones: Collection[int] = (),
    ) -> None:
        self._output_dir = output_dir
        self._after = after
        self._metadata = metadata
        self._kept = kept
        self._milestones = milestones
        self._saved: tuple[int, int] | None = None

    def before_train(self, trainer: Trainer) -> None:
        if self._saved is None:
            self._saved = _position(trainer)
        self._save_if_due(trainer)

    def after_step(self, trainer: Trainer, step: ScheduleStep, outcome: Outcome) -> None:
        self._save_if_due(trainer)

    def _save_if_due(self, trainer: Trainer) -> None:
        if _position(trainer) != self._saved and is_due(trainer, self._after):
            self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        """Save a checkpoint in the main process.

        Scheduled checkpoints average the BN running statistics over the processes. All other
        checkpoints store the statistics of each process, so that saving does not change them.
        """
        trainer.should_save = False
        models = trainer.stepper.models
        world = trainer.world
        with trainer.clock.time("saving"):
            of_ranks = None
            if trainer.progress.iteration not in self._after:
                of_ranks = buffers_of_ranks(models, world)
            average_running_stats(models)
            trainer.progress.seconds = trainer.clock.seconds
            if world.is_main:
                checkpoint = capture(trainer, self._metadata, of_ranks)
                save(self._output_dir, checkpoint, self._kept, self._milestones)
            set_buffers(models, of_ranks, world)
        self._saved = _position(trainer)


def _position(trainer: Trainer) -> tuple[int, int]:
    return trainer.progress.iteration, len(trainer.progress.evaluations)


class Agree(Hook):
    """Let all processes save or end the training if a hook in any process has asked for it.

    This follows the hooks of the user, and precedes all hooks that save, validate or log.
    """

    def after_step(self, trainer: Trainer, step: ScheduleStep, outcome: Outcome) -> None:
        wanted = (trainer.should_save, trainer.should_stop)
        trainer.should_save, trainer.should_stop = trainer.stop.any_of(*wanted)
        total = trainer.schedule.iterations
        if trainer.should_stop and trainer.progress.iteration < total:
            text = "A hook ends the training after iteration %d of %d."
            logger.info(text, trainer.progress.iteration, total)


class StopOnSignal(Hook):
    """End the training, after the checkpoint has been saved, if any process was asked to stop."""

    def after_step(self, trainer: Trainer, step: ScheduleStep, outcome: Outcome) -> None:
        trainer.stop.check()


class Validate(Hook):
    """Validate after given iterations, and add the metrics to `trainer.progress.evaluations`.

    Args:
        after: Numbers of finished iterations.
        validate: Function that takes the last iteration and returns the metrics.
        log: Function to call with each new entry of `evaluations`.
    """

    def __init__(
        self,
        after: Collection[int],
        validate: Callable[[ScheduleStep], Mapping[str, float]],
        log: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._after = after
        self._validate = validate
        self._log = log

    def before_train(self, trainer: Trainer) -> None:
        """Validate first if the resumed run ended before its last validation was complete."""
        self._validate_if_due(trainer)

    def after_step(self, trainer: Trainer, step: ScheduleStep, outcome: Outcome) -> None:
        self._validate_if_due(trainer)

    def _validate_if_due(self, trainer: Trainer) -> None:
        progress = trainer.progress
        is_due = progress.iteration in self._after or progress.ended
        if not is_due or progress.last_evaluation == progress.iteration:
            return
        step = trainer.schedule.at(progress.iteration - 1)
        with trainer.clock.time("evaluating"):
            metrics = self._validate(step)
        clips = step.first_clip + step.shape.batch
        evaluation = {
            "iteration": progress.iteration,
            "epoch": round(clips / trainer.schedule.num_videos, 4),
            "seconds": round(trainer.clock.working, 3),
            **metrics,
        }
        progress.evaluations.append(evaluation)
        self._log(evaluation)


class KeepBest(Hook):
    """Save the weights with the best validation so far. Ties go to the earlier validation.

    With MODEL.EMA_DECAY, these are the averaged weights. `settle_best` decides whether the file
    that a resumed run finds is the best of this training.

    Args:
        output_dir: The folder of the run.
        metric: Name of the metric.
        metadata: Function that returns the fields that describe the run and its data.
    """

    def __init__(self, output_dir: str, metric: str, metadata: Metadata) -> None:
        self._output_dir = output_dir
        self._metric = metric
        self._metadata = metadata

    def before_train(self, trainer: Trainer) -> None:
        if trainer.world.is_main:
            settle_best(self._output_dir, trainer.progress, keep=True)
        self._keep_best(trainer)

    def after_step(self, trainer: Trainer, step: ScheduleStep, outcome: Outcome) -> None:
        self._keep_best(trainer)

    def _keep_best(self, trainer: Trainer) -> None:
        progress = trainer.progress
        if not progress.evaluations or progress.last_evaluation != progress.iteration:
            return
        latest = progress.evaluations[-1]
        if latest[self._metric] > progress.best.get(self._metric, -math.inf):
            progress.best = latest
            if trainer.world.is_main:
                # Without an optimizer, a run cannot resume from the checkpoint.
                best = replace(
                    capture(trainer, self._metadata),
                    model_state=trainer.stepper.models[-1].state_dict(),
                    ema_state=None,
                    optimizer_state=None,
                    scaler_state=None,
                    averaged=trainer.stepper.average is not None,
                )
                with trainer.clock.time("saving"):
                    save(self._output_dir, best)


def settle_best(output_dir: str | Path, progress: Progress, *, keep: bool) -> None:
    """Make the best checkpoint on disk and `progress.best` agree.

    If the file does not belong to the best validation of this training, or if TRAIN.KEEP_BEST is
    False, rename the file. The next validation is then the best so far.

    Args:
        output_dir: The folder of the run.
        progress: Progress of the training.
        keep: The value of TRAIN.KEEP_BEST.
    """
    path = best_checkpoint(output_dir)
    if path is not None:
        if keep and _is_best_of(path, progress):
            return
        logger.warning(
            "The best checkpoint is not the best of this training, and is renamed to %s.",
            move_best_checkpoint(output_dir),
        )
    progress.best = {}


def _is_best_of(path: Path, progress: Progress) -> bool:
    try:
        best = load(path)
    except DamagedError as error:
        logger.warning("The best checkpoint cannot be used: %s", error)
        return False
    return best.training == progress.training and best.best == progress.best


def count_unreadable(
    counts: dict[int, int],
    schedule: Schedule,
    step: ScheduleStep,
    numbers: Sequence[int],
    fraction: float,
) -> None:
    """Add the unreadable videos of an iteration to the counts of its epochs.

    A mini-batch may have clips of several epochs. An epoch visits each video once, so its count is
    compared with the number of videos. It is logged at the end of the epoch.

    Args:
        counts: Number of unreadable videos by epoch. It is updated in place.
        schedule: The schedule of the training.
        step: The iteration.
        numbers: Number of unreadable videos in each epoch of the mini-batch (`epochs_of`), summed
            over all processes.
        fraction: Maximum fraction of unreadable videos (DATA.MAX_BAD_FRACTION).

    Raises:
        RunError: More than `fraction` of the videos are unreadable.
    """
    stop = step.first_clip + step.shape.batch
    for epoch, number in zip(epochs_of(schedule, step), numbers, strict=True):
        counts[epoch] = counts.get(epoch, 0) + number
        if number:
            where = f"epoch {epoch + 1} (iteration {step.iteration})"
            check_count(counts[epoch], schedule.num_videos, fraction, where)
        is_over = stop >= (epoch + 1) * schedule.num_videos
        if (is_over or step.iteration + 1 == schedule.iterations) and (bad := counts.pop(epoch)):
            logger.info("epoch %d done: %d videos could not be read", epoch + 1, bad)


def epochs_of(schedule: Schedule, step: ScheduleStep) -> range:
    """Return the epochs to which the clips of an iteration belong."""
    first = step.first_clip // schedule.num_videos
    last = (step.first_clip + step.shape.batch - 1) // schedule.num_videos
    return range(first, last + 1)


@cache
def log_unreadable(path: str, reason: str, what_follows: str) -> None:
    """Log an unreadable video. Repeated calls with the same arguments log it only once.

    Args:
        path: The video.
        reason: Why the video is unreadable.
        what_follows: Text that says how the run continues without the video.
    """
    logger.warning("%s %s; %s", path, reason, what_follows)
