"""Exponential moving average of a model's weights.

torch's `AveragedModel` copies the weights at its first update, and averages integer counters.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from slowfast_patches.models.weights.load import trained_tensors


def start_average(model: nn.Module) -> nn.Module:
    """Return a copy of a model, with `requires_grad=False` for all parameters of the copy."""
    return deepcopy(model).requires_grad_(False)


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, decay: float) -> None:
    """Update an average in place: average ← decay · average + (1 - decay) · model.

    Running statistics are averaged like parameters. Other buffers are copied: they are counters, or
    constants such as an attention mask of -inf, whose average would be NaN.
    """
    averages = trained_tensors(average)
    values = trained_tensors(model)
    update = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
    update(list(averages.values()), list(values.values()), 0)
    for (name, ours), theirs in zip(average.named_buffers(), model.buffers(), strict=True):
        if name not in averages:
            ours.copy_(theirs)
