"""The shape of a mini-batch and Equation 1 of the paper.

A mini-batch is B × T × H × W: clips, frames, height, width. Crops are square, so H = W. Multigrid
training keeps the amount of computation constant: a coarser grid has more clips. Progressive
resizing keeps the number of clips constant instead. `batch_exponent` interpolates between the two.
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
    """Shape of a mini-batch over all processes.

    It has `batch` clips of `frames` frames of `crop` × `crop` pixels.
    """

    batch: int
    frames: int
    crop: int

    def __post_init__(self) -> None:
        if min(self.batch, self.frames, self.crop) < 1:
            raise ValueError(f"{self} is no mini-batch: batch, frames and crop must be at least 1")

    def __str__(self) -> str:
        return f"{self.batch}×{self.frames}×{self.crop}²"

    @property
    def volume(self) -> int:
        """Pixels in the mini-batch, about the same for every shape of the paper's schedules."""
        return self.batch * self.frames * self.crop**2


def scale_shape(
    base: Shape, factors: Factors, size_divisor: int = 1, batch_exponent: float = 1.0
) -> Shape:
    """Return the shape on a coarser grid, by Equation 1: b = B · (T/t) · (H/h) · (W/w).

    The number of clips follows from the unrounded factors, so the paper's factors give a whole
    multiple of B. Frames and crop are rounded to the nearest integer (224 · √½ = 158).

    Args:
        base: the baseline's shape.
        factors: (t/T, h/H) of the coarser grid.
        size_divisor: if above 1, crops smaller than the baseline's are rounded to the nearest
            multiple of it, halves up, between the divisor and the baseline's crop. The number of
            clips then follows from the rounded crop, and (H/h)² is rounded to a whole number, so
            that B still divides the batch. For a divisor of 16 or 32, a crop of 158 becomes 160 of
            224: (H/h)² is 1.96 and becomes 2, which is 2 % more pixels than the baseline's.
        batch_exponent: an exponent β below 1 makes the batch grow less, by
            ((T/t) · (H/h) · (W/w))^β, rounded to a whole number. At 0 the batch is B on every grid,
            as in progressive resizing (EfficientNetV2, Tan and Le, 2021, section 4).

    Raises:
        ValueError: a factor is outside (0, 1], the grid has no frame, the divisor is below 1 or
            above the baseline's crop, or the exponent is outside [0, 1].
    """
    if not 0 <= batch_exponent <= 1:
        raise ValueError(f"batch_exponent is {batch_exponent}, but it must lie in [0, 1]")
    time, space = factors
    if not (0 < time <= 1 and 0 < space <= 1):
        raise ValueError(f"factors of a coarser grid are {factors}, but must lie in (0, 1]")
    if base.frames * time < 1:
        raise ValueError(
            f"{time:g} of {base.frames} frames is less than one frame. Use a larger factor"
        )
    if not 1 <= size_divisor <= base.crop:
        raise ValueError(
            f"size_divisor is {size_divisor}, but it must lie between 1 and the baseline's crop of "
            f"{base.crop}"
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
    """Round to the nearest multiple of `divisor`, at most `largest`; `largest` stays as it is."""
    if crop == largest:
        return largest
    return min(max(1, _nearest(crop / divisor)) * divisor, largest)


def _nearest(number: float) -> int:
    """Round to the nearest integer, halves up."""
    return math.floor(number + 0.5)
