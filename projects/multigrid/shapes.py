"""The shape of a mini-batch and Equation 1 of the paper.

A mini-batch is B × T × H × W: clips, frames, height, width; crops are square, so H = W. Multigrid
training keeps the amount of computation constant: a coarser grid takes more clips.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["BASE_FACTORS", "LONG_CYCLE", "SHORT_CYCLE", "Factors", "Shape", "scale_shape"]

Factors = tuple[float, float]
"""Frames and crop of a coarser grid as fractions (t/T, h/H) of the baseline's."""

BASE_FACTORS: Factors = (1.0, 1.0)

LONG_CYCLE: tuple[Factors, ...] = (
    (1 / 4, math.sqrt(1 / 2)),
    (1 / 2, math.sqrt(1 / 2)),
    (1 / 2, 1.0),
    (1.0, 1.0),
)
"""The four shapes of the long cycle, coarse to fine (paper §3.2)."""

SHORT_CYCLE: tuple[float, ...] = (1 / 2, math.sqrt(1 / 2))
"""The crops of the short cycle before the long cycle's own, as fractions of H (paper §3.2)."""


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


def scale_shape(base: Shape, factors: Factors) -> Shape:
    """The shape on a coarser grid, by Equation 1: b = B · (T/t) · (H/h) · (W/w).

    The factors decide the number of clips, so that it is a whole multiple of B for the paper's
    factors; frames and crop are rounded to the nearest integer (224 · √½ = 158).

    Raises:
        ValueError: a factor outside (0, 1], or a grid without a frame.
    """
    time, space = factors
    if not (0 < time <= 1 and 0 < space <= 1):
        raise ValueError(f"factors of a coarser grid lie in (0, 1], not {factors}")
    if base.frames * time < 1:
        raise ValueError(f"{time:g} of {base.frames} frames is less than one frame")
    return Shape(
        batch=round(base.batch / (time * space**2)),
        frames=round(base.frames * time),
        crop=round(base.crop * space),
    )
