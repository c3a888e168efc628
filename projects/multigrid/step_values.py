"""Values of a training step that the layers of a model read.

A layer does not store what changes from step to step. It reads an object that all layers of a model
share and that `StepState` owns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

Stats = tuple[Tensor, Tensor]
"""Two tensors (G·C,) whose sums over the G groups are the mean and the unbiased variance."""


class Place:
    """A BN layer's part in a forward pass of all layers.

    Attributes:
        weight: Scale, repeated for each group, (G·C,). None if there is one group.
        bias: Shift, repeated for each group.
        stats: Zeros for the statistics of the first call of the layer.
        calls: Statistics of each call of the layer, in order. None for a call with one group, which
            updates the running statistics itself.
    """

    __slots__ = ("bias", "calls", "stats", "weight")

    def __init__(self) -> None:
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        self.stats: Stats | None = None
        self.calls: list[Stats | None] = []

    def fits(self, x: Tensor, length: int) -> bool:
        """Return whether the repeated scale and shift can be applied to x, with G·C = `length`."""
        weight = self.weight
        if weight is None or len(weight) != length or weight.device != x.device:
            return False
        return (x.dtype == torch.float64) == (weight.dtype == torch.float64)

    def next_stats(self) -> Stats:
        """Return zeros for the statistics of the next call, and append them to `calls`."""
        assert self.stats is not None
        mean, var = self.stats
        stats = (torch.zeros_like(mean), torch.zeros_like(var)) if self.calls else (mean, var)
        self.calls.append(stats)
        return stats


class StepValues:
    """Values of a step that the layers of a model have in common.

    A copy has the same group size and no other value, because it takes no part in the step.

    Attributes:
        group_size: Clips per BN group, or None for all clips of a process.
        places: The BN layers that `NormsTogether` has prepared for a forward pass.
        coverage: Coverage of the clips, (N, 2), as in `place_positions`. None means 1.
        masks: Mask of the elements that a dropout layer keeps, (N, C) bool, on the device of its
            input. A layer without a mask draws one from torch's generator.
    """

    def __init__(self, group_size: int | None = None) -> None:
        self.group_size = group_size
        self.places: dict[nn.Module, Place] = {}
        self.coverage: Tensor | None = None
        self.masks: dict[nn.Module, Tensor] = {}

    def __reduce__(self) -> tuple[type[StepValues], tuple[int | None]]:
        return type(self), (self.group_size,)


class ReadsStep(nn.Module):
    """Base class of layers that read values of a step.

    A subclass that is not constructed by `__init__` must get `step_values` from its creator.

    Attributes:
        step_values: The values. They belong to this layer until `share_values` is called, for
            example by `StepState`.
    """

    step_values: StepValues

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.step_values = StepValues()


def share_values(layers: Iterable[ReadsStep], values: StepValues) -> None:
    """Give layers the same values."""
    for layer in layers:
        if layer.step_values is not values:
            layer.step_values = values
