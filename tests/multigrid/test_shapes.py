"""Shapes and Equation 1, on values worked out by hand from the paper."""

from __future__ import annotations

import math

import pytest

from multigrid import MultigridError, Shape, scale_shape

PAPER = Shape(batch=64, frames=32, crop=224)
HALF = math.sqrt(1 / 2)


@pytest.mark.parametrize(
    ("exponent", "clips"), [(1, 64), (0.75, 40), (0.5, 24), (0.25, 16), (0, 8)]
)
def test_the_exponent_of_the_batchs_growth_by_hand(exponent, clips):
    """8 to the power of β is 8, 4.76, 2.83, 1.68 and 1. Batches are multiples of 8 clips."""
    shape = scale_shape(Shape(8, 16, 224), (0.25, 0.5**0.5), batch_exponent=exponent)
    assert shape == Shape(clips, 4, 158)


@pytest.mark.parametrize(
    ("factors", "divisor", "expected"),
    [
        ((1 / 4, 1 / 2), 1, Shape(1024, 8, 112)),
        ((1 / 4, HALF), 1, Shape(512, 8, 158)),
        ((1 / 2, HALF), 1, Shape(256, 16, 158)),
        ((1 / 2, 1), 1, Shape(128, 16, 224)),
        ((1, HALF), 1, Shape(128, 32, 158)),
        ((1, 1), 1, PAPER),
        ((1, 0.9), 1, Shape(79, 32, 202)),  # 64 / 0.81 = 79.01
        # Crops that are multiples of a number.
        # 158.4 is nearest to 10 · 16 and to 5 · 32; (224 / 160)² = 1.96, that is 2
        ((1 / 4, HALF), 16, Shape(512, 8, 160)),
        ((1 / 2, HALF), 32, Shape(256, 16, 160)),
        # 112 is 7 · 16: as in the paper
        ((1 / 4, 1 / 2), 16, Shape(1024, 8, 112)),
        # 112 is between 3 · 32 and 4 · 32, and goes up: (224 / 128)² = 3.0625, that is 3
        ((1, 1 / 2), 32, Shape(192, 32, 128)),
        # the baseline's own crop stays, a multiple or not
        ((1 / 2, 1), 16, Shape(128, 16, 224)),
        ((1, 1), 100, PAPER),
        ((1, HALF), 100, Shape(64, 32, 200)),  # (224 / 200)² = 1.2544
        # 11.2 is nearest to 0: one divisor is the least, (224 / 32)² = 49
        ((1, 0.05), 32, Shape(49 * 64, 32, 32)),
        ((1, 0.95), 120, PAPER),  # 212.8 is nearest to 240, but no crop is more than the baseline's
    ],
)
def test_equation_1_by_hand(factors, divisor, expected):
    assert scale_shape(PAPER, factors, divisor) == expected


def test_a_constant_cost_by_hand():
    """A clip of the baseline costs 16 · (16 + 4) = 320, one of 4 frames 4 · (4 + 4) = 32.

    80 clips then cost as much as 8 clips of the baseline. In whole groups of 12 these are 84.
    """

    def cost(frames: int, crop: int) -> float:
        return frames * (frames + 4)

    base = Shape(8, 16, 64)
    scale = {"cost_per_clip": cost, "group": 12}
    assert scale_shape(base, (0.25, 1.0), **scale) == Shape(84, 4, 64)
    assert scale_shape(base, (0.25, 1.0), batch_exponent=0.0, **scale) == Shape(12, 4, 64)
    assert scale_shape(base, (1.0, 1.0), **scale) == base


@pytest.mark.parametrize(
    ("factors", "options"),
    [
        ((0.0, 1.0), {}),
        ((1.01, 1.0), {}),
        ((1.0, 0.0), {}),
        ((1.0, 1.01), {}),
        ((0.03, 1.0), {}),  # 0.96 frames
        ((1.0, 1.0), {"size_divisor": 0}),
        ((1.0, 1.0), {"size_divisor": 225}),
        ((1.0, 1.0), {"batch_exponent": -0.1}),
        ((1.0, 1.0), {"batch_exponent": 1.1}),
    ],
)
def test_a_shape_that_is_none_is_refused(factors, options):
    with pytest.raises(MultigridError, match="do not fit the shape 64×32×224²"):
        scale_shape(PAPER, factors, **options)


def test_limits_of_factors_are_shapes():
    assert scale_shape(PAPER, (1 / 32, 1.0)) == Shape(2048, 1, 224)
    assert scale_shape(PAPER, (1.0, 1.0), 224, 0.0) == PAPER
    for sides in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(MultigridError, match="must be at least 1"):
            Shape(*sides)
    assert Shape(1, 1, 1).volume == 1
    assert (Shape(2, 3, 5).volume, str(Shape(2, 3, 5))) == (150, "2×3×5²")
