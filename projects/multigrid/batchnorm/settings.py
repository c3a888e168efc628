"""What the BN layers of a model have in common: the group size, and their parts in a step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

Stats = tuple[Tensor, Tensor]
"""Two tensors (G·C,) whose sums over the G groups are the mean and the unbiased variance."""


class Place:
    """A layer's part in a forward pass of all layers.

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


class NormSettings:
    """Settings that the BN layers of a model have in common.

    A copy has the same group size, and takes no part in a forward pass.

    Attributes:
        group_size: Clips per group, or None for all clips of a process.
        places: The layers that `NormsTogether` has prepared for a forward pass.
    """

    def __init__(self, group_size: int | None = None) -> None:
        self.group_size = group_size
        self.places: dict[nn.Module, Place] = {}

    def __reduce__(self) -> tuple[type[NormSettings], tuple[int | None]]:
        return type(self), (self.group_size,)
