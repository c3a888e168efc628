"""Hooks that end a run before a bad iteration changes the weights."""

from __future__ import annotations

import math
from typing import Any

import torch

from multigrid import ScheduleStep
from slowfast_patches.datasets.count_unreadable import (
    count_unreadable,
    epochs_of,
    log_unreadable,
)
from slowfast_patches.train.checkpoint import diverged
from slowfast_patches.train.step import Outcome
from slowfast_patches.train.trainer import Hook, Trainer
from slowfast_patches.utils.distributed import sum_over_ranks


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
