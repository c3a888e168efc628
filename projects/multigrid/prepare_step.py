"""Set the BN group size of a model and the learning rates of an optimizer for an iteration."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from multigrid.batchnorm.module import set_group_size
from multigrid.schedule import Schedule, ScheduleStep
from multigrid.step_state import scaled_rates, set_rates


def prepare_step(step: ScheduleStep, model: nn.Module, *optimizers: Optimizer) -> None:
    """Set the BN group size of a model and the learning rates of optimizers for an iteration.

    `Training.begin` does this for the iterations of a schedule in order. Call this function
    directly only to train iterations in another order.

    The learning rate of each parameter group is `step.lr` times the group's "lr_scale", which is 1
    by default. If the group has a "batch_rate_rule" ("linear" or "sqrt"), its learning rate grows
    with the batch by this rule instead of the schedule's (see `batch_rate_factor`). A
    learning rate that is a tensor is changed in place.

    Args:
        step: The iteration, as returned by `Schedule.at`.
        model: The model to change.
        optimizers: The optimizers to change.
    """
    set_group_size(model, step.bn_group_size)
    for optimizer in optimizers:
        set_rates(optimizer, step)


def keep_ratios(optimizer: Optimizer, known: int, lr: float) -> None:
    """Store the learning rates of new parameter groups as their "lr_scale".

    A group without a learning rate of its own has the optimizer's default, and is left alone.

    Args:
        optimizer: The optimizer.
        known: Number of groups that are not new.
        lr: The schedule's learning rate at which the groups were added.
    """
    for group in optimizer.param_groups[known:]:
        has_own = float(group["lr"]) != float(optimizer.defaults.get("lr", group["lr"]))
        if has_own and lr > 0:
            group.setdefault("lr_scale", float(group["lr"]) / lr)


class MultigridLR(LRScheduler):
    """PyTorch learning-rate scheduler for a multigrid schedule. Call `step()` in every iteration.

    `Training.begin` sets the same learning rates, so use either `MultigridLR` or `Training`. The
    learning rate of a parameter group is the schedule's learning rate times the group's "lr_scale",
    which is 1 by default. It stays constant after the last iteration.

    Args:
        optimizer: The optimizer.
        schedule: The schedule to train.
        last_epoch: As in PyTorch: the iteration before the one to start at.
    """

    def __init__(self, optimizer: Optimizer, schedule: Schedule, last_epoch: int = -1) -> None:
        self.schedule = schedule
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float | Tensor]:
        """Return the learning rate of each parameter group for the current iteration.

        PyTorch counts the calls of `step()` in `last_epoch`, so `last_epoch` is the iteration.
        """
        step = self.schedule.at(min(self.last_epoch, self.schedule.iterations - 1))
        return list[float | Tensor](scaled_rates(self.optimizer, step))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scheduler, excluding the schedule and the optimizer."""
        given = ("schedule", "training")
        return {name: value for name, value in super().state_dict().items() if name not in given}
