"""Hooks that end a run before a bad iteration changes the weights."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from multigrid import Schedule, ScheduleStep
from slowfast_patches.tasks.scores import check_count
from slowfast_patches.train.checkpoint import diverged
from slowfast_patches.train.step import Outcome
from slowfast_patches.train.trainer import Hook, Trainer
from slowfast_patches.utils.distributed import sum_over_ranks

logger = logging.getLogger(__name__)


class LossGuard(Hook):
    """End the run in all processes if the loss of any process is NaN or infinite."""

    def after_backward(self, trainer: Trainer, step: ScheduleStep, outcome: Outcome) -> None:
        """Check the loss.

        Raises:
            RunError: The loss of the global mini-batch is not finite.
        """
        loss = float(sum_over_ranks(outcome.loss.clone())) / trainer.world.size
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
    """Return the epochs of which the mini-batch of an iteration has clips."""
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
