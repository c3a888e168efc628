"""Losses of tasks, worked out by hand."""

import math

import pytest
import torch
from torch import nn

from slowfast_patches.config import load_recipe
from slowfast_patches.tasks import task_of
from slowfast_patches.tasks.losses import class_weights
from slowfast_patches.utils.errors import UserError


def loss_of(*keys: object, counts: list[int] | None = None) -> nn.Module:
    return task_of(load_recipe(None, keys)).loss(counts)


@pytest.mark.parametrize(
    ("keys", "scores", "labels", "loss"),
    [
        ((), torch.zeros(3, 4), torch.tensor([0, 1, 3]), math.log(4)),
        (("DATA.MULTI_LABEL", True), torch.zeros(3, 4), torch.eye(4)[:3], math.log(2)),
    ],
)
def test_losses_are_means_over_the_mini_batch(keys, scores, labels, loss):
    found = loss_of(*keys)(scores, labels)
    assert float(found) == pytest.approx(loss)


# Class weights: with three videos of class 0 and one of class 1 they are 2/3 and 2.

WEIGHTED = pytest.mark.parametrize("weights", ["balanced", [1, 3]])


@WEIGHTED
def test_clips_count_by_their_class_and_on_average_as_one(weights):
    loss = loss_of("SOLVER.CLASS_WEIGHTS", weights, counts=[3, 1])
    even = torch.zeros(4, 2)
    assert float(loss(even[:2], torch.tensor([0, 1]))) == pytest.approx(math.log(2) * 4 / 3)
    assert float(loss(even, torch.tensor([0, 1, 0, 0]))) == pytest.approx(math.log(2))
    mixed = torch.tensor([[0.75, 0.25]])
    assert float(loss(even[:1], mixed)) == pytest.approx(math.log(2))


def test_parts_of_a_mini_batch_have_its_loss_and_smoothing_is_of_the_unweighted_one():
    scores = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([1, 0, 1, 1, 0, 0])
    keys = ("MODEL.LABEL_SMOOTHING", 0.2)
    loss = loss_of("SOLVER.CLASS_WEIGHTS", "balanced", *keys, counts=[3, 1])
    whole = float(loss(scores, labels))
    parts = [float(loss(scores[p::3], labels[p::3])) for p in range(3)]
    assert sum(parts) / 3 == pytest.approx(whole)
    plain = loss_of(*keys)
    zeros, ones = (float(plain(scores[labels == c], labels[labels == c])) for c in (0, 1))
    assert whole == pytest.approx((zeros * 2 / 3 + ones * 2) / 2)


@WEIGHTED
def test_of_several_labels_classes_count_and_on_average_as_one(weights):
    """The weights are 1/2 and 3/2."""
    several = ("DATA.MULTI_LABEL", True)
    loss = loss_of("SOLVER.CLASS_WEIGHTS", weights, *several, counts=[3, 1])
    scores = torch.tensor([[0.0, 100.0]])
    found = [float(loss(scores, torch.tensor([row]))) for row in ([1.0, 1.0], [0.0, 1.0])]
    assert found == pytest.approx([math.log(2) / 4] * 2)
    assert float(loss(torch.zeros(3, 2), torch.eye(2)[[0, 1, 1]])) == pytest.approx(math.log(2))


def test_weights_that_are_all_the_same_are_warned_of(caplog):
    loss_of("SOLVER.CLASS_WEIGHTS", "balanced", counts=[5, 5])
    [text] = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert text.startswith("SOLVER.CLASS_WEIGHTS balanced has no effect")


@pytest.mark.parametrize(
    ("given", "shares"), [([0.0, 1.0], [5, 0]), ("balanced", [0, 0]), ([0.0, 0.0], [1, 1])]
)
def test_weights_that_no_video_has_are_refused(given, shares):
    with pytest.raises(UserError, match=r"gives no training video a weight above 0"):
        class_weights(given, shares, shares=shares)
