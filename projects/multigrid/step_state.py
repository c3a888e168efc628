"""The owner of everything in a model and an optimizer that changes from step to step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from multigrid.batchnorm.module import GroupedBatchNorm3d, warn_unconverted
from multigrid.batchnorm.together import NormsTogether
from multigrid.learning_rate import batch_rate_factor
from multigrid.positions.interpolate import FollowsGrid
from multigrid.schedule import ScheduleStep
from multigrid.step_values import ReadsStep, StepValues, share_values

Kind = TypeVar("Kind", bound=nn.Module)


class StepState:
    """Owner of the state of a step, which changes from step to step and is not trained.

    The layers of the model read `values`: the BN group size, the coverage of the clips, dropout
    masks, and what BN layers do together. The learning rates are set in the optimizers.

    Make one for a model, and keep it. It looks up the modules of the model once. If modules are
    added, removed or replaced, the next `prepare` looks them up again. A copy of the model, or a
    model that was saved and loaded, needs a `StepState` of its own.

    Args:
        model: The model to train. It may be wrapped.
        is_compiled: Whether the model is compiled for training. BN layers then do their small
            operations alone, and the compiler fuses them.

    Attributes:
        values: Values that all layers of the model share.
        modules: All modules of the model.
    """

    def __init__(self, model: nn.Module, *, is_compiled: bool = False) -> None:
        self.model = model
        self.values = StepValues()
        self.modules: tuple[nn.Module, ...] = ()
        self._is_compiled = is_compiled
        self._found = list[nn.Module]()
        self._of_kind = dict[type[nn.Module], list[nn.Module]]()
        self._modes = list[bool]()
        self.refresh()

    def refresh(self) -> None:
        """Look up the modules of the model again if they have changed."""
        found = [self.model]
        for module in found:  # grows: several times as fast as `model.modules()`
            found += [child for child in module._modules.values() if child is not None]
        if found != self._found:
            self._found = found
            self.modules = tuple(dict.fromkeys(found))
            self._of_kind = {}
            self._modes = []
            # isinstance is slow for protocols (microseconds per module), so use hasattr first.
            likely = [m for m in self.modules if hasattr(type(m), "set_coverage")]
            followers = [m for m in likely if isinstance(m, FollowsGrid)]
            self._foreign = [m for m in followers if not isinstance(m, ReadsStep)]
            self._norms = self.of_kind(GroupedBatchNorm3d)
            self._together = NormsTogether(self._norms, self.values)
        share_values(self.of_kind(ReadsStep), self.values)

    def of_kind(self, kind: type[Kind]) -> list[Kind]:
        """Return the modules of the model that are instances of a class."""
        if kind not in self._of_kind:
            self._of_kind[kind] = [m for m in self.modules if isinstance(m, kind)]
        return cast(list[Kind], self._of_kind[kind])

    def prepare(self, step: ScheduleStep, *optimizers: Optimizer) -> None:
        """Set the BN group size and the learning rates for an iteration (see `prepare_step`)."""
        self.set_group_size(step.bn_group_size)
        for optimizer in optimizers:
            set_rates(optimizer, step)

    def set_group_size(self, group_size: int | None) -> None:
        """Set the number of clips per BN group, or None for all clips of a process.

        Warns if the model has no `GroupedBatchNorm3d`.
        """
        self.refresh()
        self.values.group_size = group_size
        if group_size is not None and not self._norms:
            warn_unconverted()

    def set_coverage(self, coverage: Tensor | None) -> None:
        """Set the coverage of the clips of the next forward (see `multigrid.set_coverage`)."""
        self.values.coverage = coverage
        for module in self._foreign:
            module.set_coverage(coverage)

    def set_masks(self, masks: Mapping[nn.Module, Tensor]) -> None:
        """Set the dropout masks of the next forward, by layer (see `StepValues`)."""
        self.values.masks = dict(masks)

    def train(self, network: nn.Module) -> None:
        """Call `network.train()`, unless no module has changed its mode since the last call.

        Args:
            network: The model, or a wrapper of it.
        """
        if network.training and [m.training for m in self.modules] == self._modes:
            return
        network.train()
        self._modes = [m.training for m in self.modules]

    @contextmanager
    def step(self) -> Iterator[None]:
        """Enclose the forward and backward passes of a step in which weights do not change."""
        try:
            yield
        finally:
            self._together.end()

    @contextmanager
    def forward(self, clips: int) -> Iterator[None]:
        """Enclose a forward pass within `step`. BN layers do their small operations together.

        The running statistics are updated at the end. If the model is compiled, nothing is done.

        Args:
            clips: Number of clips of the forward pass on this process.
        """
        if not self._is_compiled:
            self._together.before_forward(clips)
        yield
        if not self._is_compiled:
            self._together.after_forward()


def scaled_rates(optimizer: Optimizer, step: ScheduleStep) -> list[float]:
    """Return the learning rate of each parameter group of an optimizer in an iteration."""
    rates = list[float]()
    for group in optimizer.param_groups:
        rate = step.lr
        if rule := group.get("batch_rate_rule"):
            rate *= batch_rate_factor(step.growth, rule) / step.lr_scale
        rates.append(rate * group.get("lr_scale", 1.0))
    return rates


@torch.no_grad()
def set_rates(optimizer: Optimizer, step: ScheduleStep) -> None:
    """Set the learning rate of each parameter group for an iteration.

    A learning rate that is a tensor is changed in place, because a compiled or captured optimizer
    step reads the tensor. Parameter groups that share a tensor get one each.
    """
    known = set[int]()
    for group, rate in zip(optimizer.param_groups, scaled_rates(optimizer, step), strict=True):
        if not isinstance(group["lr"], Tensor):
            group["lr"] = rate
            continue
        if id(group["lr"]) in known:
            group["lr"] = group["lr"].clone()
        known.add(id(group["lr"]))
        group["lr"].fill_(rate)
