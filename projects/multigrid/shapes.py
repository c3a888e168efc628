"""The shape of a mini-batch and Equation 1 of the paper.

A mini-batch is B × T × H × W: clips, frames, height, width; crops are square, so H = W. Multigrid
training keeps the amount of computation constant: a coarser grid takes more clips. Between that and
progressive resizing, where it takes no more, lies `batch_exponent`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["BASE_FACTORS", "Factors", "Shape", "scale_shape"]

Factors = tuple[float, float]
"""Frames and crop of a coarser grid as fractions (t/T, h/H) of the baseline's."""

BASE_FACTORS: Factors = (1.0, 1.0)


@dataclass(frozen=True, order=True)
class Shape:
    """A mini-batch: `batch` clips over all processes, `frames` frames, `crop` × `crop` pixels."""

    batch: int
    frames: int
    crop: int

    def __post_init__(self) -> None:
        if min(self.batch, self.frames, self.crop) < 1:
            raise ValueError(f"a mini-batch needs clips, frames and pixels, not {self}")

    def __str__(self) -> str:
        return f"{self.batch}×{self.frames}×{self.crop}²"

    @property
    def volume(self) -> int:
        """Pixels in the mini-batch; about the same for every shape of a schedule."""
        return self.batch * self.frames * self.crop**2


def scale_shape(
    base: Shape, factors: Factors, size_divisor: int = 1, batch_exponent: float = 1.0
) -> Shape:
    """The shape on a coarser grid, by Equation 1: b = B · (T/t) · (H/h) · (W/w).

    The factors decide the number of clips, so that it is a whole multiple of B for the paper's
    factors; frames and crop are rounded to the nearest integer (224 · √½ = 158).

    With a `size_divisor` above 1, a crop that is smaller than the baseline's is rounded to the
    nearest multiple of it, halves up, that lies between the divisor and the baseline's crop (160
    for 16 or 32). The number of clips follows from the rounded crop, with (H/h)² rounded to the
    nearest whole number, so that B, and what divides it over processes and BN groups, divides it
    still: at 160 of 224 it is 2 for 1.96, with 2 % more pixels than the baseline's.

    With a `batch_exponent` β below 1 the batch grows less, by ((T/t) · (H/h) · (W/w))^β, rounded to
    the nearest whole number for the same reason. At 0 it is B on every grid, as in progressive
    resizing (EfficientNetV2, Tan and Le, 2021, section 4).

    Raises:
        ValueError: a factor outside (0, 1], a grid without a frame, a divisor below 1 or above the
            baseline's crop, or an exponent outside [0, 1].
    """
    if not 0 <= batch_exponent <= 1:
        raise ValueError(f"the exponent of the batch's growth lies in [0, 1], not {batch_exponent}")
    time, space = factors
    if not (0 < time <= 1 and 0 < space <= 1):
        raise ValueError(f"factors of a coarser grid lie in (0, 1], not {factors}")
    if base.frames * time < 1:
        raise ValueError(f"{time:g} of {base.frames} frames is less than one frame")
    if not 1 <= size_divisor <= base.crop:
        raise ValueError(
            f"crops of coarser grids are multiples of a number from 1 to the baseline's crop of "
            f"{base.crop}, not of {size_divisor}"
        )
    frames = round(base.frames * time)
    crop = base.crop * space
    rounded = round(crop) if size_divisor == 1 else _round_crop(crop, size_divisor, base.crop)
    coarser = 1 / space**2 if size_divisor == 1 else _nearest((base.crop / rounded) ** 2)
    growth = coarser / time
    if batch_exponent < 1:
        growth = _nearest(growth**batch_exponent)
    return Shape(round(base.batch * growth), frames, rounded)


def _round_crop(crop: float, divisor: int, largest: int) -> int:
    """The nearest multiple of `divisor`, no larger than `largest`, which stays what it is."""
    if crop == largest:
        return largest
    return min(max(1, _nearest(crop / divisor)) * divisor, largest)


def _nearest(number: float) -> int:
    """The nearest integer, halves up."""
    return math.floor(number + 0.5)
