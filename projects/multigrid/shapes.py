"""The shape of a mini-batch and Equation 1 of the paper.

A mini-batch has B clips of T frames of H × W pixels. Crops are square, so H = W. Multigrid training
keeps the number of pixels in a mini-batch constant: if clips are smaller, the mini-batch has more
clips. Progressive resizing keeps the number of clips constant instead. `batch_exponent`
interpolates between the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from multigrid.errors import MultigridError

Factors = tuple[float, float]
"""Frames and crop of a shape as fractions (t/T, h/H) of the baseline's frames and crop."""

BASE_FACTORS: Factors = (1.0, 1.0)

CostPerClip = Callable[[int, int], float]
"""Function of (frames, crop) that returns the cost of one clip, in any unit."""


@dataclass(frozen=True, order=True)
class Shape:
    """Shape of a mini-batch over all processes.

    Attributes:
        batch: Number of clips.
        frames: Number of frames of a clip.
        crop: Width and height of a clip, in pixels.
    """

    batch: int
    frames: int
    crop: int

    def __post_init__(self) -> None:
        if min(self.batch, self.frames, self.crop) < 1:
            raise MultigridError(
                f"the shape {self} is not valid: batch, frames and crop must be at least 1"
            )

    def __str__(self) -> str:
        return f"{self.batch}×{self.frames}×{self.crop}²"

    @property
    def volume(self) -> int:
        """Number of pixels in the mini-batch. It is nearly the same for all shapes of the paper."""
        return self.batch * self.frames * self.crop**2


class ClipRequest(NamedTuple):
    """Index for a data set's `__getitem__`: which video to read, and in which shape.

    Attributes:
        video: Index of the video in the data set.
        epoch: Index of the epoch, from 0.
        shape: Shape of the mini-batch over all processes. The clip needs its `frames` and `crop`.
        iteration: Index of the iteration, from 0.
    """

    video: int
    epoch: int
    shape: Shape
    iteration: int


def scale_shape(
    base: Shape,
    factors: Factors,
    size_divisor: int = 1,
    batch_exponent: float = 1.0,
    cost_per_clip: CostPerClip | None = None,
    group: int = 1,
) -> Shape:
    """Return the shape with fewer frames, smaller crops and, by Equation 1, more clips.

    Equation 1 is b = B · (T/t) · (H/h) · (W/w). With the factors of the paper, the number of
    clips is a multiple of B. Frames and crop are rounded to the nearest integer afterwards
    (224 · √½ becomes 158).

    Args:
        base: The baseline's shape.
        factors: Frames and crop as fractions (t/T, h/H) of the baseline's.
        size_divisor: If above 1, crops smaller than the baseline's are rounded to the nearest
            multiple of this number. The number of clips is then computed from the rounded crop, and
            (H/h)² is rounded to an integer. The number of clips therefore remains a multiple of B.
            Example with a divisor of 16 or 32 and H = 224: a crop of 158 becomes 160, and (H/h)² =
            1.96 becomes 2, so the mini-batch has 2 % more pixels than the baseline's.
        batch_exponent: Exponent β in [0, 1]. The batch grows by ((T/t) · (H/h) · (W/w))^β, rounded
            to an integer. With 1, this is Equation 1. With 0, every shape has B clips, as in
            progressive resizing (EfficientNetV2, Tan and Le, 2021, section 4).
        cost_per_clip: Cost to keep constant instead of the number of pixels. The batch grows by
            (cost of a clip of `base` / cost of a clip)^β.
        group: With `cost_per_clip`, the batch is rounded to a multiple of this number of clips, and
            is at least this number.

    Raises:
        ValueError: A factor is outside (0, 1], there is less than one frame, the divisor is below 1
            or above the baseline's crop, or the exponent is outside [0, 1].
    """
    time, space = factors
    fits = time <= 1 and base.frames * time >= 1 and 0 < space <= 1
    if not (fits and 0 <= batch_exponent <= 1 and 1 <= size_divisor <= base.crop):
        raise MultigridError(
            f"the factors (t/T, h/H) {factors}, size_divisor {size_divisor} or batch_exponent "
            f"{batch_exponent} do not fit the shape {base}: factors lie in (0, 1] and leave at "
            "least one frame, the divisor lies between 1 and the crop, the exponent in [0, 1]"
        )
    frames = round(base.frames * time)
    crop = base.crop * space
    rounded = round(crop) if size_divisor == 1 else _round_crop(crop, size_divisor, base.crop)
    if cost_per_clip is not None:
        if (frames, rounded) == (base.frames, base.crop):
            return base
        ratio = cost_per_clip(base.frames, base.crop) / cost_per_clip(frames, rounded)
        groups = max(1, _nearest(base.batch * ratio**batch_exponent / group))
        return Shape(groups * group, frames, rounded)
    coarser = 1 / space**2 if size_divisor == 1 else _nearest((base.crop / rounded) ** 2)
    growth = coarser / time
    if batch_exponent < 1:
        growth = _nearest(growth**batch_exponent)
    return Shape(round(base.batch * growth), frames, rounded)


def _round_crop(crop: float, divisor: int, largest: int) -> int:
    """Round to the nearest multiple of `divisor` from `divisor` to `largest`.

    A crop of `largest` is not rounded.
    """
    if crop == largest:
        return largest
    return min(max(1, _nearest(crop / divisor)) * divisor, largest)


def _nearest(number: float) -> int:
    """Round to the nearest integer. Numbers halfway between two integers are rounded up."""
    return math.floor(number + 0.5)
