"""Mixup and CutMix: mix pairs of clips and their labels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.extras.mixing.keys import MixupKeys

_MIXING = 2
"""Part of every seed of this module, so that no other module draws the same random numbers."""


class Mixing:
    """Mixup and CutMix, configured by the keys MIXUP.* of the recipe.

    Mixup: Zhang et al., "mixup: Beyond Empirical Risk Minimization", 2018. CutMix: Yun et al.,
    "CutMix: Regularization Strategy to Train Strong Classifiers", 2019.

    Each clip is mixed with a neighbour in the data stream: the first clip with the second, the
    third with the fourth. The random numbers of a clip depend only on the seed and on the index of
    the clip in the stream. A resumed run therefore mixes the same way. The number of processes does
    not matter if every process has an even number of clips. The number of micro-batches does not
    matter if every BN group has an even number of clips. A transformer has no BN groups, so its
    pairs depend on the number of micro-batches.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._keys = MixupKeys.of(recipe)
        self._seed = recipe.rng_seed
        self._classes = recipe.model.num_classes

    def __call__(self, pathways: Sequence[Tensor], labels: Tensor, clips: Sequence[int]) -> Tensor:
        """Mix clips in place, and return the mixed labels.

        Args:
            pathways: One tensor (N, C, T, H, W) for each pathway. All frames of a clip are mixed in
                the same way.
            labels: Class indices (N,), or multi-hot labels (N, classes).
            clips: Indices of the N clips in the data stream.

        Returns:
            Float labels (N, classes). Each row is the average of the labels of the two clips,
            weighted by their shares of the pixels.
        """
        device = labels.device
        crop = pathways[0].shape[-1]
        drawn = torch.tensor([self.draw(number, crop) for number in clips], dtype=torch.float32)
        added = _added(_sent(drawn, device), crop)
        others = _sent(_neighbours(clips), device)
        for pathway in pathways:
            pathway.lerp_(pathway[others], added.to(pathway.dtype))
        targets = F.one_hot(labels, self._classes).float() if labels.ndim == 1 else labels
        return targets.lerp(targets[others], added.mean((1, 2, 3, 4))[:, None])

    def draw(self, number: int, crop: int) -> tuple[float, int, int, int, int]:
        """Draw the region of a clip that is mixed with its neighbour, and the mixing weight.

        Args:
            number: Index of the clip in the data stream.
            crop: Crop size in pixels.

        Returns:
            (share, top, bottom, left, right): `share` is the weight of the neighbour, from 0 to 1,
            in rows [top, bottom) and columns [left, right). Other pixels are not mixed.
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


def depends_on_division(recipe: Recipe) -> bool:
    """Return whether processes or micro-batches may divide the pairs, see `Mixing`."""
    even = recipe.groups_batchnorm and recipe.bn_group_size % 2 == 0
    return not even or recipe.base_shape.batch // recipe.world_size % 2 != 0


def _neighbours(clips: Sequence[int]) -> Tensor:
    """Return, for each clip, the position of its neighbour in `clips`.

    In the order of the data stream, the first and second clips are neighbours, then the third and
    fourth. With an odd number of clips, the last clip is its own neighbour.
    """
    others = torch.arange(len(clips))
    pairs = torch.tensor(clips).argsort()[: len(clips) // 2 * 2].view(-1, 2)
    others[pairs] = pairs.flip(1)
    return others


def _added(drawn: Tensor, crop: int) -> Tensor:
    """Convert rows of `Mixing.draw` to the neighbour's weight at each pixel.

    Returns:
        (N, 1, 1, crop, crop), from 0 to 1.
    """
    share, top, bottom, left, right = drawn.view(-1, 5, 1, 1).unbind(1)
    columns = torch.arange(crop, device=drawn.device)
    rows = columns.view(-1, 1)
    inside = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
    return (share * inside)[:, None, None]


def _sent(values: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to the device, asynchronously through pinned memory on a GPU."""
    values = values.pin_memory() if device.type == "cuda" else values
    return values.to(device, non_blocking=True)
