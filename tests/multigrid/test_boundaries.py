"""Values at which a function of the method changes what it does, worked out by hand."""

from __future__ import annotations

import os
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

from multigrid import Cycles, FrameClips, Shape, SteppedRate, Video, make_schedule
from multigrid.cost import rate_rule_advice
from multigrid.grids import Grid
from multigrid.sampling import clip_generator, plan_train
from multigrid.shared_memory import fit_workers


def memory(blocks, free):
    status = SimpleNamespace(f_blocks=blocks, f_bavail=free, f_frsize=10)
    return mock.patch.object(os, "statvfs", return_value=status)


@pytest.mark.parametrize(
    ("free", "fitting"),
    [
        (700, 3),  # 3 workers with 2 mini-batches each, and one more: 7 of 1000 bytes
        (699, 2),
        (500, 2),
        (499, 1),
        (300, 1),
        (299, 0),
        (0, 0),
    ],
)
def test_workers_fit_into_shared_memory_by_hand(free, fitting):
    with memory(9999, free):
        found, text = fit_workers(3, 1000)
    assert found == fitting
    assert (text == "") is (fitting == 3)
    if text:
        assert f"is enough for {fitting} instead of 3" in text
    with memory(9999, 2 * free):
        assert fit_workers(3, 1000, processes=2)[0] == fitting, "two processes share it"


def test_no_limit_and_no_workers_need_no_shared_memory():
    with memory(0, 0):
        assert fit_workers(3, 1000) == (3, "")
    with memory(9999, 0):
        assert fit_workers(0, 1000) == (0, "")
    with mock.patch.object(os, "statvfs", side_effect=OSError):
        assert fit_workers(3, 1000) == (3, "")


@pytest.mark.parametrize(("width", "height", "columns", "rows"), [(68, 64, 4, 2), (64, 68, 2, 4)])
def test_crops_reach_all_corners_of_a_frame(width, height, columns, rows):
    """A crop of 31 pixels has two places along a side of 32, and four along a side of 34."""
    grid = Grid(frames=1, crop=31, strides=(1, 1), short_sides=(32, 32))
    video = Video(5, 30.0, width, height)
    plans = [plan_train(clip_generator(0, 0, number), grid, video) for number in range(100)]
    assert {plan.corner for plan in plans} == {(x, y) for x in range(columns) for y in range(rows)}


def test_an_item_without_a_request_is_the_centre_at_no_iteration():
    frames = np.zeros((6, 20, 24, 3), np.uint8)
    item = FrameClips([(frames, 3)], Shape(4, 4, 16))[0]
    assert (item["iteration"], item["label"], item["flip"]) == (-1, 3, False)
    assert item["clip"].shape == (4, 16, 16, 3)


def test_the_square_root_is_advised_only_where_the_rate_grows_linearly():
    base, policy = Shape(4, 4, 16), SteppedRate((4.0, 6.0), (0.1, 0.01))
    model = torch.nn.Linear(1, 1)
    adam = torch.optim.Adam(model.parameters())
    growing = make_schedule(base, 200, policy, bn_group_size=None)
    (text,) = rate_rule_advice(growing, adam)
    assert 'batch_rate_rule="sqrt"' in text
    assert rate_rule_advice(growing, torch.optim.SGD(model.parameters(), 0.1)) == ()
    root = make_schedule(base, 200, policy, bn_group_size=None, batch_rate_rule="sqrt")
    assert rate_rule_advice(root, adam) == ()
    flat = make_schedule(base, 200, policy, cycles=None, bn_group_size=None)
    assert rate_rule_advice(flat, adam) == ()
    twice = make_schedule(base, 200, policy, Cycles(((0.5, 1.0), (1.0, 1.0))), bn_group_size=None)
    (text,) = rate_rule_advice(twice, adam)
    assert "by up to 2," in text
    adam.param_groups[0]["batch_rate_rule"] = "sqrt"
    assert rate_rule_advice(growing, adam) == ()
