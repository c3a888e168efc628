"""An exponential moving average of a model's weights, which is evaluated beside them."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

__all__ = ["start_average", "update_average"]


def start_average(model: nn.Module) -> nn.Module:
    """A copy of a model, without gradients."""
    return deepcopy(model).requires_grad_(False)


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, decay: float) -> None:
    """Move an average by 1 - `decay` of the way to the weights and running statistics of `model`.

    Running statistics are averaged with the weights that they belong to; counters are copied.
    """
    means, counters = _split(average)
    values, counts = _split(model)
    get_ema_multi_avg_fn(decay)(means, values, 0)  # type: ignore[no-untyped-call]
    for counter, count in zip(counters, counts, strict=True):
        counter.copy_(count)


def _split(model: nn.Module) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The tensors of a model: of floating point, and counters."""
    tensors = [*model.parameters(), *model.buffers()]
    floats = [tensor for tensor in tensors if tensor.is_floating_point()]
    return floats, [tensor for tensor in tensors if not tensor.is_floating_point()]
