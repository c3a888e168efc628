"""Exponential moving average of a model's weights.

torch's `AveragedModel` copies the weights at its first update, and averages integer counters.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


def start_average(model: nn.Module) -> nn.Module:
    """Return a copy of a model, with `requires_grad=False` for all parameters of the copy."""
    return deepcopy(model).requires_grad_(False)


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, decay: float) -> None:
    """Update an average in place: average ← decay · average + (1 - decay) · model.

    Floating-point buffers such as running statistics are averaged like parameters. Integer buffers
    are counters and are copied.
    """
    averages, average_counters = _split(average)
    values, counters = _split(model)
    get_ema_multi_avg_fn(decay)(averages, values, 0)  # type: ignore[no-untyped-call]
    for average_counter, counter in zip(average_counters, counters, strict=True):
        average_counter.copy_(counter)


def _split(model: nn.Module) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return two lists of parameters and buffers: floating-point tensors, and all other tensors."""
    tensors = [*model.parameters(), *model.buffers()]
    floats = [tensor for tensor in tensors if tensor.is_floating_point()]
    return floats, [tensor for tensor in tensors if not tensor.is_floating_point()]
