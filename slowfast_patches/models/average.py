"""Exponential moving average of a model's weights.

torch's `AveragedModel` copies the weights at its first update, and averages integer counters.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from slowfast_patches.models.weights.load_weights import trained_tensors


def start_average(model: nn.Module) -> nn.Module:
    """Return a copy of a model, with `requires_grad=False` for all parameters of the copy."""
    return deepcopy(model).requires_grad_(False)


class AverageUpdate:
    """Update of an average. The tensors of both models are looked up once.

    Running statistics are averaged like parameters. Other buffers are copied: they are counters, or
    constants such as an attention mask of -inf, whose average would be NaN.

    Args:
        average: The average, from `start_average`.
        model: The model that is trained. Parameters and buffers must stay the same objects.
        decay: Share of the old average in the new one.
    """

    def __init__(self, average: nn.Module, model: nn.Module, decay: float) -> None:
        averages = trained_tensors(average)
        self._averages = list(averages.values())
        self._values = list(trained_tensors(model).values())
        named = zip(average.named_buffers(), model.buffers(), strict=True)
        others = [(ours, theirs) for (name, ours), theirs in named if name not in averages]
        self._copies = [ours for ours, _ in others]
        self._copied = [theirs for _, theirs in others]
        self._update = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def __call__(self) -> None:
        """Update the average in place: average ← decay · average + (1 - decay) · model."""
        self._update(self._averages, self._values, 0)
        if self._copies:
            torch._foreach_copy_(self._copies, self._copied)
