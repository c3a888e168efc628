"""Augment training clips as set by the keys `AUG.*`.

The augmentations are RandAugment, colour jitter, random erasing and functions of the user.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Self

import cv2
import numpy as np
from numpy.typing import NDArray

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.transforms import Clip, change, transform_generator
from slowfast_patches.extras.augment.keys import AugKeys
from slowfast_patches.registry import AUGMENTATIONS

OPERATIONS = (
    *("identity", "autocontrast", "equalize", "solarize", "posterize", "brightness", "contrast"),
    *("colour", "sharpness", "rotate", "shear_x", "shear_y", "translate_x", "translate_y"),
)
"""Names of the RandAugment operations.

The ranges of their magnitudes are those of AutoAugment (Cubuk et al., CVPR 2019, table 6).
"""

_GREY = np.array([0.299, 0.587, 0.114])
"""Weights of R, G and B in the luminance (ITU-R BT.601)."""
_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
"""Smoothing kernel of the operation `sharpness`."""
_AREA = (0.02, 1 / 3)
"""Random erasing: range of the total erased area, as a fraction of the frame area."""
_ASPECT = math.log(1 / 0.3)
"""Random erasing: maximum absolute logarithm of the aspect ratio of a rectangle."""


class Augmentation:
    """Augments training clips in place. All frames of a clip get the same changes.

    The steps are, in this order:

    1. RandAugment (Cubuk et al., CVPR Workshops 2020) if AUG.AA_TYPE is set, and otherwise jitter
       of brightness, contrast and colour.
    2. Random erasing (Zhong et al., AAAI 2020).
    3. The functions named in AUG.CUSTOM.

    Each clip has its own random generator, seeded by (seed, epoch, video). All sizes are drawn
    relative to the frame size. The augmentation of a clip therefore does not depend on the worker,
    the rank, the earlier clips, or the shape of the clip.
    """

    def __init__(self, keys: AugKeys, mean: Sequence[float], seed: int) -> None:
        self._keys = keys
        self._custom = [(name, AUGMENTATIONS[name]) for name in keys.custom]
        self._seed = seed
        self._fill = tuple(255 * value for value in mean)

    @classmethod
    def of_recipe(cls, recipe: Recipe) -> Self:
        return cls(AugKeys.of(recipe), recipe.data.mean, recipe.rng_seed)

    def __call__(self, clip: Clip, epoch: int, video: int) -> None:
        rng = transform_generator(self._seed, epoch, video)
        changed = clip
        if self._keys.aa_type:
            count, magnitude, spread = parse_rand_augment(self._keys.aa_type)
            for number in rng.integers(len(OPERATIONS), size=count):
                strength = float(np.clip(rng.normal(magnitude, spread), 0, 10)) / 10
                sign = float(rng.choice((-1, 1)))
                changed = apply(OPERATIONS[number], changed, strength * sign, self._fill)
        else:
            reach = self._keys.color_jitter
            for name in rng.permutation(("brightness", "contrast", "colour")):
                changed = _enhanced(name, changed, 1 + rng.uniform(-reach, reach))
        if changed is not clip:
            clip[...] = changed
        if rng.random() < self._keys.re_prob:
            for _ in range(self._keys.re_count):
                self._erase(clip, rng)
        for name, augment in self._custom:
            change(clip, augment, rng, name)

    def _erase(self, clip: Clip, rng: np.random.Generator) -> None:
        """Fill a random rectangle with the mean colour or with noise.

        The rectangle and the noise are the same in all frames.
        """
        side = clip.shape[1]
        area = rng.uniform(*_AREA) / self._keys.re_count
        aspect = math.exp(rng.uniform(-_ASPECT, _ASPECT))
        sides = (math.sqrt(area * aspect), math.sqrt(area / aspect))
        height, width = (min(side, max(1, round(side * part))) for part in sides)
        top, left = (round(rng.random() * room) for room in (side - height, side - width))
        rectangle = clip[:, top : top + height, left : left + width]
        if self._keys.re_mode == "const":
            rectangle[...] = np.rint(self._fill)
        else:
            rectangle[...] = rng.integers(256, size=rectangle.shape[1:], dtype=np.uint8)


def parse_rand_augment(text: str) -> tuple[int, float, float]:
    """Parse a description of RandAugment such as "rand-m7-n4-mstd0.5-inc1".

    Args:
        text: "rand", followed by options that start with "-" and end with a number:
            n is the number of operations per clip (default 2).
            m is the magnitude of the operations, from 0 to 10 (default 9).
            mstd is the standard deviation of the magnitude (default 0).
            inc must be 1: the effect of an operation always increases with the magnitude.

    Returns:
        The number of operations, the magnitude, and the standard deviation of the magnitude.
    """
    given = {name: float(number) for name, number in re.findall(r"-(mstd|m|n)([\d.]+)", text)}
    return int(given.get("n", 2)), given.get("m", 9.0), given.get("mstd", 0.0)


def try_augmentations(recipe: Recipe, frames: int, crop: int) -> None:
    """Call the functions of AUG.CUSTOM once on a clip of noise, before a training starts.

    Raises:
        UserError: An augmentation does not return a clip.
    """
    rng = np.random.default_rng(0)
    clip = rng.integers(256, size=(frames, crop, crop, 3), dtype=np.uint8)
    for name in AugKeys.of(recipe).custom:
        change(clip.copy(), AUGMENTATIONS[name], rng, name)


def apply(name: str, clip: Clip, level: float, fill: Sequence[float]) -> Clip:
    """Apply an operation of RandAugment, and return the new clip.

    Args:
        name: One of `OPERATIONS`.
        clip: The clip, (T, S, S, 3).
        level: Strength in [-1, 1]. 0 gives the smallest change. The sign selects the direction of
            operations that have two directions, such as rotations.
        fill: Colour (R, G, B) of pixels that a geometric operation moves in from outside the frame.
    """
    values = np.arange(256)
    if name == "identity":
        return clip
    if name in ("autocontrast", "equalize"):
        return _looked_up(clip, _stretched(clip, by_rank=name == "equalize"))
    if name == "solarize":
        inverted = values >= 256 * (1 - abs(level))
        return _looked_up(clip, np.where(inverted, 255 - values, values))
    if name == "posterize":
        return _looked_up(clip, values & -(1 << round(4 * abs(level))))
    if name in ("brightness", "contrast", "colour", "sharpness"):
        return _enhanced(name, clip, 1 + 0.9 * level)
    cos, sin = math.cos(math.radians(30 * level)), math.sin(math.radians(30 * level))
    shear, shift = 0.3 * level, 0.45 * level * clip.shape[1]
    *matrix, across, down = {
        "rotate": (cos, -sin, sin, cos, 0, 0),
        "shear_x": (1, shear, 0, 1, 0, 0),
        "shear_y": (1, 0, shear, 1, 0, 0),
        "translate_x": (1, 0, 0, 1, shift, 0),
        "translate_y": (1, 0, 0, 1, 0, shift),
    }[name]
    return _warped(clip, np.reshape(matrix, (2, 2)), np.array([across, down]), fill)


def _enhanced(name: str, clip: Clip, factor: float) -> Clip:
    """Change the brightness, contrast, colour or sharpness of a clip by a factor.

    A factor of 0 removes the property `name` completely. A factor of 1 leaves the clip unchanged.
    Larger factors enhance the property.
    """
    if name == "sharpness":
        kernel = (1 - factor) * _SMOOTH
        kernel[1, 1] += factor
        return np.stack([cv2.filter2D(frame, -1, kernel) for frame in clip])
    rows = clip.reshape(-1, clip.shape[2], 3)
    if name == "colour":
        matrix = factor * np.eye(3) + (1 - factor) * _GREY
        return np.asarray(cv2.transform(rows, matrix), np.uint8).reshape(clip.shape)
    base = float(cv2.mean(rows)[:3] @ _GREY) if name == "contrast" else 0.0
    return _looked_up(clip, base + factor * (np.arange(256) - base))


def _stretched(clip: Clip, *, by_rank: bool) -> NDArray[np.float64]:
    """Return a lookup table (256, 3) that stretches each channel to the full range 0 to 255.

    By default the stretch is linear (autocontrast). If `by_rank` is true, the table equalizes the
    histogram.
    """
    rows = clip.reshape(-1, clip.shape[2], 3)
    tables = list[NDArray[np.float64]]()
    for channel in range(3):
        counts = cv2.calcHist([rows], [channel], None, [256], [0, 256]).ravel()
        places = np.cumsum(counts, dtype=np.float64) if by_rank else np.arange(256.0)
        low, high = places[np.flatnonzero(counts)[[0, -1]]]
        tables.append(255 * ((places - low) / (high - low)) if low < high else np.arange(256.0))
    return np.stack(tables, 1)


def _looked_up(clip: Clip, table: NDArray[np.generic]) -> Clip:
    """Replace every value of a clip by its entry in a lookup table, (256,) or (256, 3)."""
    whole = np.clip(np.rint(table), 0, 255).astype(np.uint8)
    rows = clip.reshape(-1, clip.shape[2], 3)
    return np.asarray(cv2.LUT(rows, whole.reshape(1, 256, -1)), np.uint8).reshape(clip.shape)


def _warped(
    clip: Clip, matrix: NDArray[np.float64], shift: NDArray[np.float64], fill: Sequence[float]
) -> Clip:
    """Apply an affine transform to every frame of a clip.

    Args:
        clip: The clip, (T, S, S, 3).
        matrix: (2, 2). It maps a position (x, y) in the original frame, relative to the centre of
            the frame, to the new position.
        shift: (x, y) in pixels, added after the multiplication by `matrix`.
        fill: Colour (R, G, B) of pixels outside the original frame.
    """
    size = clip.shape[2]
    centre = np.full(2, (size - 1) / 2)
    moved = np.column_stack([matrix, centre - matrix @ centre + shift])
    warped = [cv2.warpAffine(frame, moved, (size, size), borderValue=fill) for frame in clip]
    return np.stack(warped)
