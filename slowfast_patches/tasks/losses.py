"""Weights of classes in a training loss."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

logger = logging.getLogger(__name__)


class WeightedCrossEntropy(nn.Module):
    """Cross entropy with a weight for each class, averaged over the clips.

    The loss of a clip is multiplied by the weight of its label, or by the mean weight of its label
    probabilities.

    The `weight` of torch's own loss divides by the sum of the weights in the batch. The weight of
    a clip would then depend on the mini-batch, micro-batch and process that it is in.
    """

    weight: Tensor

    def __init__(self, weight: Tensor, smoothing: float) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self._smoothing = smoothing

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        losses = F.cross_entropy(logits, labels, reduction="none", label_smoothing=self._smoothing)
        if labels.ndim == 1:
            return (losses * self.weight[labels]).mean()
        return (losses * (labels * self.weight).sum(1)).mean()


def class_weights(
    given: Sequence[float] | str, counts: Sequence[int], *, shares: Sequence[int]
) -> Tensor:
    """Return SOLVER.CLASS_WEIGHTS divided by their mean.

    Balanced weights are inverse to the number of videos, where a class without videos counts as
    one.

    Args:
        given: The key.
        counts: Number of videos of each class.
        shares: How often each class counts in the mean.
    """
    videos = torch.tensor(counts, dtype=torch.float64)
    balanced = given == "balanced"
    weights = 1 / videos.clamp(min=1) if balanced else torch.tensor(given, dtype=torch.float64)
    weights /= (weights * torch.tensor(shares)).sum() / sum(shares)
    if torch.allclose(weights, torch.ones_like(weights)):
        logger.warning(
            "SOLVER.CLASS_WEIGHTS %s has no effect, because all weights are the same. Leave it out",
            given,
        )
    low = int(weights.argmin())
    high = int(weights.argmax())
    logger.info(
        "class weights from %.3g (class %d, %d videos) to %.3g (class %d, %d videos)",
        *(weights[low], low, counts[low], weights[high], high, counts[high]),
    )
    return weights.float()
