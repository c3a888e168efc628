"""Functions of the user that change training clips."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from slowfast_patches.utils.errors import UserError

Clip = NDArray[np.uint8]
"""Clip, (T, S, S, 3) uint8 RGB."""

Transform = Callable[[Clip, np.random.Generator], Clip]
"""Function or module of the user that takes a clip and a random generator, and returns a clip."""

_STREAM = 3
"""Last element of the seed. The generator that samples clips uses another number here."""


class Transforms:
    """Apply the user's functions to training clips, one after another, in place.

    Each clip has its own random generator, seeded by (seed, epoch, video).
    """

    def __init__(self, transforms: Sequence[Transform], seed: int) -> None:
        self._transforms = transforms
        self._seed = seed

    def __call__(self, clip: Clip, epoch: int, video: int) -> None:
        rng = transform_generator(self._seed, epoch, video)
        for transform in self._transforms:
            name = getattr(transform, "__name__", type(transform).__name__)
            change(clip, transform, rng, name)


def transform_generator(seed: int, epoch: int, video: int) -> np.random.Generator:
    """Return the random generator for the changes of a training clip."""
    return np.random.default_rng((seed, epoch, video, _STREAM))


def change(clip: Clip, transform: Transform, rng: np.random.Generator, name: str) -> None:
    """Replace the content of a clip by what a function of the user returns.

    Raises:
        ValueError: The function does not return a clip of the same shape.
    """
    changed = transform(clip, rng)
    is_clip = isinstance(changed, np.ndarray) and changed.dtype == clip.dtype
    if not is_clip or changed.shape != clip.shape:
        raise UserError(
            f"the augmentation {name!r} must return a clip {clip.shape} uint8 as a NumPy array, "
            f"not {_describe(changed)}"
        )
    clip[...] = changed


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array {value.shape} {value.dtype}"
    return f"a value of type {type(value).__name__}"
