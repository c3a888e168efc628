"""ROIAlign: values worked out by hand, properties, and the values of other implementations."""

import math

import pytest
import torch
from torch import Tensor

from slowfast_patches.detection.roi_align import ROIAlign

COLUMNS = torch.arange(4.0).expand(1, 1, 4, 4)
"""Feature map (1, 1, 4, 4) in which each value is the index of its column."""


def boxes(*edges: tuple[float, ...]) -> Tensor:
    return torch.tensor([(0.0, *box) for box in edges])


@pytest.mark.parametrize(
    ("edges", "aligned", "expected"),
    [
        # The whole map: two bins of two columns each, 2 × 2 samples a bin at the columns' centres.
        ((0, 0, 4, 4), True, [0.5, 2.5]),
        # Half the map: one sample a bin, at x = 0.5 and 1.5: the first two columns.
        ((0, 0, 2, 2), True, [0.0, 1.0]),
        # Not aligned, value n lies at n: samples at 0.5 and 1.5.
        ((0, 0, 2, 2), False, [0.5, 1.5]),
        # To the left, samples at -2.5 and -0.5 of the aligned map: the first is outside, the second
        # is the border's.
        ((-3, 0, 1, 2), True, [0.0, 0.0]),
        # Wholly outside.
        ((9, 0, 11, 2), True, [0.0, 0.0]),
    ],
)
def test_values_by_hand(edges, aligned, expected):
    pooled = ROIAlign((2, 2), 1.0, 0, aligned)(COLUMNS, boxes(edges))
    torch.testing.assert_close(pooled, torch.tensor(expected).expand(1, 1, 2, 2))


def test_a_box_of_no_size_is_zero_and_no_box_is_no_row():
    align = ROIAlign((2, 3), 1.0, 0)
    assert not align(COLUMNS + 1, boxes((1, 1, 1, 1))).any()
    assert align(COLUMNS, torch.zeros(0, 5)).shape == (0, 1, 2, 3)


def test_gradients_in_double():
    maps = torch.randn(2, 2, 5, 4, dtype=torch.float64, requires_grad=True)
    rois = torch.tensor([[0, 3, 7, 40, 61.0], [1, 0, 0, 64, 80], [1, -9, 20, 30, 90]]).double()
    assert torch.autograd.gradcheck(lambda x: ROIAlign((3, 2), 1 / 16, 0)(x, rois), maps)


def random_boxes() -> tuple[Tensor, Tensor]:
    """Make feature maps (2, 3, 6, 9) and boxes that extend beyond their borders."""
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(2, 3, 6, 9, generator=generator, dtype=torch.float64)
    corners = torch.rand(8, 2, 2, generator=generator, dtype=torch.float64) * 200 - 40
    numbers = torch.randint(2, (8, 1), generator=generator)
    return maps, torch.cat([numbers, corners.amin(1), corners.amax(1)], 1)


def sampled(channel: Tensor, y: float, x: float) -> float:
    """Sample (H, W) bilinearly from its four neighbours."""
    height, width = channel.shape
    if not (-1 <= y <= height and -1 <= x <= width):
        return 0.0
    y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
    top, left = math.floor(y), math.floor(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    upper = channel[top, left] * (1 - x + left) + channel[top, right] * (x - left)
    lower = channel[bottom, left] * (1 - x + left) + channel[bottom, right] * (x - left)
    return float(upper * (1 - y + top) + lower * (y - top))


def test_it_is_the_mean_of_samples_taken_one_by_one():
    maps, rois = random_boxes()
    pooled = ROIAlign((3, 2), 1 / 16, 0)(maps, rois)
    for box, found in zip(rois.tolist(), pooled, strict=True):
        left, top, right, bottom = (edge / 16 - 0.5 for edge in box[1:])
        high, wide = (bottom - top) / 3, (right - left) / 2
        down, across = math.ceil(high), math.ceil(wide)
        samples = [
            sampled(
                maps[int(box[0]), 1],
                top + (1 + (k + 0.5) / down) * high,
                left + (n + 0.5) / across * wide,
            )
            for k in range(down)
            for n in range(across)
        ]
        assert found[1, 1, 0] == pytest.approx(sum(samples) / len(samples), abs=1e-9)
