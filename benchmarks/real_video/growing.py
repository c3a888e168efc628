"""An augmentation whose strength grows with the clip, for the recipes growing_augmentation.yaml."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from slowfast_patches.extras.augment.augmentation import OPERATIONS, apply
from slowfast_patches.registry import register_augmentation


@register_augmentation("growing")
def growing(clip: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Apply one operation of RandAugment whose magnitude grows with the clip.

    The magnitude is 5 of 10 for 16 frames of 64 pixels, and 0 for an eighth of these pixels.
    """
    share = clip[..., 0].size / (16 * 64 * 64)
    magnitude = max(0.0, 0.5 + math.log2(share) / 6)
    operation = OPERATIONS[int(rng.integers(len(OPERATIONS)))]
    sign = float(rng.choice((-1, 1)))
    return clip if magnitude == 0 else apply(operation, clip, magnitude * sign, (115, 115, 115))
