"""ROIAlign: values worked out by hand."""

import pytest
import torch
from torch import Tensor

from slowfast_patches.extras.detection.roi_align import ROIAlign

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
        # Not aligned, a box of no size has the size 1: samples at 1.25 and 1.75.
        ((1, 1, 1, 1), False, [1.25, 1.75]),
        # To the left, samples at -2.5 and -0.5 of the aligned map: the first is outside, the second
        # is the border's.
        ((-3, 0, 1, 2), True, [0.0, 0.0]),
        # Between the columns.
        ((0.7, 0, 2.7, 2), True, [0.7, 1.7]),
        # Wholly outside.
        ((9, 0, 11, 2), True, [0.0, 0.0]),
    ],
)
def test_values_by_hand(edges, aligned, expected):
    pooled = ROIAlign((2, 2), 1.0, 0, aligned)(COLUMNS, boxes(edges))
    torch.testing.assert_close(pooled, torch.tensor(expected).expand(1, 1, 2, 2))
    turned = torch.tensor([[0, *(edges[n] for n in (1, 0, 3, 2))]])
    pooled = ROIAlign((2, 2), 1.0, 0, aligned)(COLUMNS.mT, turned)
    torch.testing.assert_close(pooled.mT, torch.tensor(expected).expand(1, 1, 2, 2))


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        # Aligned, a box from -1 to 1 has its samples at positions -1 and 0.
        (-1.0, [1, 1]),
        (-1.1, [0, 1]),
        # The map has 4 columns: samples at 3 and 4.
        (3.0, [1, 1]),
        (3.1, [1, 0]),
    ],
)
def test_a_sample_counts_up_to_one_position_outside_the_map(left, expected):
    ones = torch.ones(1, 1, 4, 4)
    pooled = ROIAlign((1, 2), 1.0, 0)(ones, boxes((left, 1, left + 2, 2)))
    torch.testing.assert_close(pooled, torch.tensor([[[expected]]]).float())
    turned = ROIAlign((2, 1), 1.0, 0)(ones, boxes((1, left, 2, left + 2)))
    torch.testing.assert_close(turned, pooled.mT)


def test_each_box_is_pooled_from_its_own_map_at_the_scale_of_the_features():
    """Of the second map, whose values are 10 larger, columns 0 and 1."""
    maps = torch.cat([COLUMNS, COLUMNS + 10])
    rois = torch.tensor([[1.0, 0, 0, 8, 8], [0, 0, 0, 8, 8]])
    pooled = ROIAlign((1, 2), 0.25, 0)(maps, rois)
    torch.testing.assert_close(pooled, torch.tensor([[[[10.0, 11]]], [[[0.0, 1]]]]))


def test_a_box_of_no_size_is_zero_and_no_box_is_no_row():
    align = ROIAlign((2, 3), 1.0, 0)
    assert not align(COLUMNS + 1, boxes((1, 1, 1, 1))).any()
    assert align(COLUMNS, torch.zeros(0, 5)).shape == (0, 1, 2, 3)


def test_features_get_gradients_and_boxes_get_none():
    features = COLUMNS.clone().requires_grad_()
    rois = boxes((0, 0, 4, 4), (1, 1, 1, 1)).requires_grad_()
    ROIAlign((1, 1), 1.0, 0)(features, rois).sum().backward()
    assert features.grad.sum().item() == pytest.approx(1)  # of a mean over the map
    assert rois.grad is None
