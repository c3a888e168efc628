"""Mixup and cutmix: clips that are blends of two, and labels as theirs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from slowfast_patches.config.recipe import Recipe

_MIXING = 2
"""Keeps the generators of shares apart from others that are seeded by a seed and two numbers."""


class Mixing:
    """Mixup (Zhang et al., "mixup: Beyond Empirical Risk Minimization", 2018) and cutmix (Yun et
    al., "CutMix: Regularization Strategy to Train Strong Classifiers", 2019), as MIXUP says.

    Clips that pass the network together are mixed with their neighbours in the stream: the first
    with the second, the third with the fourth. How is drawn for each clip from a generator seeded
    by (seed, its number in the stream). So a run that is continued mixes alike, and so do other
    numbers of processes that have an even number of clips each, and of parts, if BN groups are of
    an even number; a transformer's parts, without groups, have other neighbours.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._keys = recipe.mixup
        self._seed = recipe.rng_seed
        self._classes = recipe.model.num_classes

    def __call__(self, pathways: Sequence[Tensor], labels: Tensor, clips: Sequence[int]) -> Tensor:
        """Mix clips in place, and their labels.

        Args:
            pathways: (N, C, T, H, W) each, all frames of a clip mixed alike.
            labels: classes (N,), or multi-hot (N, classes).
            clips: their numbers in the stream.

        Returns the labels (N, classes) float: a clip's own and its neighbour's, in proportion to
        their pixels.
        """
        device = labels.device
        crop = pathways[0].shape[-1]
        drawn = torch.tensor([self.draw(number, crop) for number in clips], dtype=torch.float32)
        added = _added(_sent(drawn, device), crop)
        others = _sent(torch.tensor(_neighbours(clips)), device)
        for pathway in pathways:
            pathway.lerp_(pathway[others], added.to(pathway.dtype))
        targets = F.one_hot(labels, self._classes).float() if labels.ndim == 1 else labels
        return targets.lerp(targets[others], added.mean((1, 2, 3, 4))[:, None])

    def draw(self, number: int, crop: int) -> tuple[float, int, int, int, int]:
        """What a clip takes of its neighbour: a share of the pixels in a box of rows [top, bottom)
        and columns [left, right), as (share, top, bottom, left, right)."""
        keys = self._keys
        rng = np.random.default_rng((self._seed, number, _MIXING))
        mixed, cut = rng.random(2)
        if mixed >= keys.prob:
            return 0.0, 0, 0, 0, 0
        if keys.alpha > 0 and (keys.cutmix_alpha == 0 or cut >= keys.switch_prob):
            return rng.beta(keys.alpha, keys.alpha), 0, crop, 0, crop
        half = crop * math.sqrt(rng.beta(keys.cutmix_alpha, keys.cutmix_alpha)) / 2
        middle = rng.random(2) * crop
        edges = (np.rint(middle + reach).clip(0, crop).astype(int) for reach in (-half, half))
        (top, left), (bottom, right) = edges
        return 1.0, top, bottom, left, right


def _neighbours(clips: Sequence[int]) -> list[int]:
    """The index of each clip's neighbour: the first and second in the stream are neighbours, so are
    the third and fourth; of an odd number the last is its own."""
    others = list(range(len(clips)))
    ordered = sorted(others, key=clips.__getitem__)
    for one, two in zip(ordered[::2], ordered[1::2], strict=False):
        others[one] = two
        others[two] = one
    return others


def _added(drawn: Tensor, crop: int) -> Tensor:
    """The share of each pixel that is the neighbour's, (N, 1, 1, crop, crop)."""
    share, top, bottom, left, right = drawn.view(-1, 5, 1, 1).unbind(1)
    columns = torch.arange(crop, device=drawn.device)
    rows = columns.view(-1, 1)
    inside = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
    return (share * inside)[:, None, None]


def _sent(values: Tensor, device: torch.device) -> Tensor:
    """Values on the device; from pinned memory the copy waits for nothing."""
    if device.type != "cuda":
        return values
    return values.pin_memory().to(device, non_blocking=True)
