"""An exponential moving average of a model's weights, which is evaluated beside them."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

__all__ = ["start_average", "update_average"]


def start_average(model: nn.Module) -> nn.Module:
    """A model of the same names, at the weights that `model` has now; nothing trains it."""
    return deepcopy(model).requires_grad_(False)


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, decay: float) -> None:
    """Move an average by 1 - `decay` of the way to the weights and running statistics of `model`.

    Running statistics are averaged too, for those of the weights' own would be of other features;
    counters are copied.
    """
    pairs = list(zip(_tensors(average), _tensors(model), strict=True))
    moved = [pair for pair in pairs if pair[0].is_floating_point()]
    copied = [pair for pair in pairs if not pair[0].is_floating_point()]
    ours, theirs = map(list, zip(*moved, strict=True))
    get_ema_multi_avg_fn(decay)(ours, theirs, 0)  # type: ignore[no-untyped-call]
    for own, counter in copied:
        own.copy_(counter)


def _tensors(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]
