"""Set the BN group size of a model and the learning rates of an optimizer for an iteration."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from multigrid.batchnorm import set_group_size
from multigrid.schedule import Schedule, ScheduleStep


def prepare_step(step: ScheduleStep, model: nn.Module, optimizer: Optimizer) -> None:
    """Set the BN group size of a model and the learning rates of an optimizer for an iteration.

    `Training.begin` does this for the iterations of a schedule in order. Call this function
    directly only to train iterations in another order. The learning rate of each parameter group is
    `step.lr` times the group's "lr_scale", which is 1 by default.

    Args:
        step: The iteration, as returned by `Schedule.at`.
        model: The model to change.
        optimizer: The optimizer to change.
    """
    set_group_size(model, step.bn_size)
    for group, rate in zip(optimizer.param_groups, scaled_rates(optimizer, step.lr), strict=True):
        group["lr"] = rate


def scaled_rates(optimizer: Optimizer, lr: float) -> list[float]:
    """Return the learning rate of each parameter group: `lr` times its "lr_scale"."""
    return [lr * group.get("lr_scale", 1.0) for group in optimizer.param_groups]


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

        PyTorch counts calls of `step()` in `last_epoch`. Here this is the iteration.
        """
        lr = self.schedule.at(min(self.last_epoch, self.schedule.iterations - 1)).lr
        return list[float | Tensor](scaled_rates(self.optimizer, lr))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scheduler, excluding the schedule and the optimizer."""
        given = ("schedule", "training")
        return {name: value for name, value in super().state_dict().items() if name not in given}
