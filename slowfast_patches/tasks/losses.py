"""Training losses with class weights."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slowfast_patches.utils.errors import UserError

logger = logging.getLogger(__name__)


class WeightedCrossEntropy(nn.Module):
    """Cross entropy with class weights, averaged over clips.

    The loss of a clip is multiplied by the weight of the clip's class. If the label is a vector of
    probabilities, the weight is the mean of the class weights under these probabilities.

    `nn.CrossEntropyLoss(weight)` divides by the sum of the weights in the batch instead. The
    influence of a clip would then depend on the other clips in its micro-batch.

    Args:
        weight: Weight of each class, (C,).
        smoothing: Label smoothing, from 0 to 1.
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
    """Return the class weights of SOLVER.CLASS_WEIGHTS, scaled to a weighted mean of 1.

    The weights of "balanced" are 1 / (number of videos of the class). A class without videos has
    the weight of a class with one video.

    Args:
        given: Value of SOLVER.CLASS_WEIGHTS: a weight for each class, or "balanced".
        counts: Number of videos of each class.
        shares: Weight of each class in the weighted mean, such as its number of videos.

    Returns:
        A float32 tensor (C,).

    Raises:
        UserError: No class that occurs has a weight above 0.
    """
    videos = torch.tensor(counts, dtype=torch.float64)
    balanced = given == "balanced"
    weights = 1 / videos.clamp(min=1) if balanced else torch.tensor(given, dtype=torch.float64)
    total = float((weights * torch.tensor(shares)).sum())
    if not 0 < total < math.inf:
        raise UserError(
            f"SOLVER.CLASS_WEIGHTS {given} gives no training video a weight above 0. Set a weight "
            "above 0 for a class that occurs in the training list"
        )
    weights /= total / sum(shares)
    if torch.allclose(weights, torch.ones_like(weights)):
        logger.warning(
            "SOLVER.CLASS_WEIGHTS %s has no effect, because all weights are equal. Remove the key.",
            given,
        )
    return weights.float()
