"""Mixup and cutmix: blend pairs of clips and their labels."""

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
    """Mixup and cutmix, as the section MIXUP of the recipe describes them.

    Mixup is by Zhang et al., "mixup: Beyond Empirical Risk Minimization", 2018. Cutmix is by Yun
    et al., "CutMix: Regularization Strategy to Train Strong Classifiers", 2019.

    Clips are mixed with their neighbours in the stream: the first with the second, the third with
    the fourth. The draws of a clip depend only on the seed and its number in the stream, so a
    resumed run mixes alike. So do other numbers of processes, if each has an even number of clips,
    and of micro-batches, if BN groups have an even number of clips. The micro-batches of a
    transformer, which has no BN groups, pair other neighbours.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._keys = recipe.mixup
        self._seed = recipe.rng_seed
        self._classes = recipe.model.num_classes

    def __call__(self, pathways: Sequence[Tensor], labels: Tensor, clips: Sequence[int]) -> Tensor:
        """Mix clips in place and return their mixed labels.

        Args:
            pathways: (N, C, T, H, W) each. All frames of a clip are mixed alike.
            labels: classes (N,), or multi-hot (N, classes).
            clips: numbers of the clips in the stream.

        Returns:
            Labels (N, classes), float. Each is the clip's own and its neighbour's, in proportion to
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
        """Draw what a clip takes from its neighbour.

        Returns:
            (share, top, bottom, left, right): the neighbour's share of each pixel in a box of rows
            [top, bottom) and columns [left, right).
        """
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
    """Return the index of each clip's neighbour.

    The first and the second clip in the stream are neighbours, and so are the third and the fourth.
    With an odd number of clips, the last one is its own neighbour.
    """
    others = list(range(len(clips)))
    ordered = sorted(others, key=clips.__getitem__)
    for one, two in zip(ordered[::2], ordered[1::2], strict=False):
        others[one] = two
        others[two] = one
    return others


def _added(drawn: Tensor, crop: int) -> Tensor:
    """Return the neighbour's share of each pixel, (N, 1, 1, crop, crop)."""
    share, top, bottom, left, right = drawn.view(-1, 5, 1, 1).unbind(1)
    columns = torch.arange(crop, device=drawn.device)
    rows = columns.view(-1, 1)
    inside = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
    return (share * inside)[:, None, None]


def _sent(values: Tensor, device: torch.device) -> Tensor:
    """Copy values to the device. Pinned memory makes the copy asynchronous."""
    if device.type != "cuda":
        return values
    return values.pin_memory().to(device, non_blocking=True)
