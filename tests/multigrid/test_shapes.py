"""Shapes and Equation 1, on values worked out by hand from the paper."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multigrid import LONG_CYCLE, SHORT_CYCLE, Shape, scale_shape

PAPER = Shape(batch=64, frames=32, crop=224)
HALF = math.sqrt(1 / 2)

quick = settings(max_examples=100, deadline=None, derandomize=True)


def test_the_long_cycle_of_the_paper():
    shapes = [scale_shape(PAPER, factors) for factors in LONG_CYCLE]
    assert shapes == [
        Shape(512, 8, 158),
        Shape(256, 16, 158),
        Shape(128, 16, 224),
        Shape(64, 32, 224),
    ]


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ((1 / 4, 1 / 2), Shape(1024, 8, 112)),
        ((1 / 4, HALF), Shape(512, 8, 158)),
        ((1 / 2, 1 / 2), Shape(512, 16, 112)),
        ((1, 1 / 2), Shape(256, 32, 112)),
        ((1, HALF), Shape(128, 32, 158)),
        ((1, 1), PAPER),
    ],
)
def test_equation_1_by_hand(factors, expected):
    assert scale_shape(PAPER, factors) == expected


def test_the_short_cycle_is_half_and_root_half():
    assert list(SHORT_CYCLE) == pytest.approx([0.5, 0.70710678])


def test_a_single_clip_grows_by_whole_clips():
    one = Shape(1, 8, 224)  # the paper's one-GPU recipe has 8 of these
    assert [scale_shape(one, factors).batch for factors in LONG_CYCLE] == [8, 4, 2, 1]


@quick
@given(
    base=st.builds(
        Shape, st.integers(1, 512), st.sampled_from([4, 8, 16, 32, 64]), st.integers(64, 352)
    ),
    factors=st.sampled_from(LONG_CYCLE),
    crop=st.sampled_from([*SHORT_CYCLE, 1.0]),
)
def test_the_amount_of_computation_stays_the_same(base, factors, crop):
    shape = scale_shape(base, (factors[0], crop))
    # Only the rounding of the crop to whole pixels moves it: half a pixel of 32 or more, squared.
    assert shape.volume == pytest.approx(base.volume, rel=0.04)
    assert shape.batch % base.batch == 0


def test_volume_and_text():
    assert Shape(2, 3, 10).volume == 600
    assert str(PAPER) == "64×32×224²"


@pytest.mark.parametrize("factors", [(0, 1), (1, 0), (1.5, 1), (1, 1.01), (-0.5, 1)])
def test_factors_outside_0_to_1_are_refused(factors):
    with pytest.raises(ValueError, match="factors of a coarser grid"):
        scale_shape(PAPER, factors)


def test_a_grid_without_a_frame_is_refused():
    with pytest.raises(ValueError, match="of 2 frames is less than one frame"):
        scale_shape(Shape(8, 2, 112), (1 / 4, 1))


@pytest.mark.parametrize("sizes", [(0, 8, 112), (8, 0, 112), (8, 8, -1)])
def test_an_empty_mini_batch_is_refused(sizes):
    with pytest.raises(ValueError, match="needs clips, frames and pixels"):
        Shape(*sizes)


def test_shapes_are_frozen():
    with pytest.raises(FrozenInstanceError):
        PAPER.batch = 3  # type: ignore[misc]
