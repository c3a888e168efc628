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

    Running statistics are averaged like parameters. Other buffers are copied: they are counters, or
    constants such as an attention mask of -inf, whose average would be NaN.
    """
    averages, average_others = _split(average)
    values, others = _split(model)
    get_ema_multi_avg_fn(decay)(averages, values, 0)  # type: ignore[no-untyped-call]
    for average_other, other in zip(average_others, others, strict=True):
        average_other.copy_(other)


def _split(model: nn.Module) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the parameters and BN running statistics of a model, and its other buffers."""
    statistics = [value for name, value in model.named_buffers() if "running_" in name]
    others = [value for name, value in model.named_buffers() if "running_" not in name]
    return [*model.parameters(), *statistics], others
