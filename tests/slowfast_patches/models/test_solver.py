"""Optimizers, weight decay, clipping, losses and precision, worked out by hand."""

import math

import pytest
import torch
from torch import Tensor, nn

from slowfast_patches.config import check_recipe, load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.models.build import build_model
from slowfast_patches.models.solver import (
    Precision,
    build_optimizer,
    clip_gradients,
    loss_function,
)

CPU = torch.device("cpu")


def config(*overrides: object) -> Recipe:
    return load_recipe(None, ["NUM_GPUS", 0, *overrides])


class Net(nn.Module):
    """Network of a linear layer and BN whose parameters are all 1."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.bn = nn.Linear(2, 2), nn.BatchNorm1d(2)
        for parameter in self.parameters():
            nn.init.ones_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.linear(x))


def decayed(*overrides: object) -> dict[str, float]:
    """Return each parameter after a step of rate 1 with zero gradients, which is 1 - its decay."""
    decays = ["SOLVER.WEIGHT_DECAY", 0.25, "BN.WEIGHT_DECAY", 0.125]
    cfg, net = config("SOLVER.BASE_LR", 1.0, "SOLVER.MOMENTUM", 0.0, *decays, *overrides), Net()
    optimizer = build_optimizer(cfg, net)
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return {name: value.mean().item() for name, value in net.named_parameters()}


DECAYED = {"linear.weight": 0.75, "linear.bias": 0.75, "bn.weight": 0.875, "bn.bias": 0.875}


def test_norms_have_their_own_weight_decay():
    assert decayed("SOLVER.NESTEROV", False) == DECAYED


def test_the_decay_of_adamw_is_beside_its_moments():
    """AdamW subtracts rate · decay from a weight, besides the update by the moments.

    Adam adds the decay to the gradient and moves the weight by the rate.
    """
    assert decayed("SOLVER.OPTIMIZING_METHOD", "adamw") == DECAYED
    adam = decayed("SOLVER.OPTIMIZING_METHOD", "adam")
    assert adam["linear.weight"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("method", ["sgd", "adamw"])
def test_biases_are_freed_of_weight_decay_where_the_recipe_asks(method):
    asked = ["SOLVER.ZERO_WD_1D_PARAM", True, "SOLVER.NESTEROV", False]
    values = decayed("SOLVER.OPTIMIZING_METHOD", method, *asked)
    assert values["linear.bias"] == 1.0
    assert values["linear.weight"] < 1.0


# Gradients of 3 and 4 have a norm of 5.
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], [3.0, 4.0]),
        (["SOLVER.CLIP_GRAD_VAL", 3.5], [3.0, 3.5]),
        (["SOLVER.CLIP_GRAD_L2NORM", 1.0], [0.6, 0.8]),
    ],
)
def test_gradients_are_clipped_by_value_or_by_norm(overrides, expected):
    net = nn.Linear(2, 1, bias=False)
    net.weight.grad = torch.tensor([[3.0, 4.0]])
    clip_gradients(config(*overrides), net)
    assert net.weight.grad.flatten().tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "scores", "labels", "loss"),
    [
        ("cross_entropy", torch.zeros(3, 4), torch.tensor([0, 1, 3]), math.log(4)),
        ("bce_logit", torch.zeros(3, 4), torch.eye(4)[:3], math.log(2)),
    ],
)
def test_losses_are_means_over_the_mini_batch(name, scores, labels, loss):
    found = loss_function(config("MODEL.LOSS_FUNC", name))(scores, labels)
    assert float(found) == pytest.approx(loss)


def test_a_smoothed_label_has_a_share_of_every_class():
    """Smoothing by 0.2 gives 0.85 to the label and 0.05 to each of the other 3 classes.

    Logits of 1, 0, 0, 0 have the log-probabilities 1 - z, -z, -z, -z with z = log(e + 3).
    """
    z = math.log(math.e + 3)
    loss = loss_function(config("MODEL.LABEL_SMOOTHING", 0.2))
    found = loss(torch.tensor([[1.0, 0.0, 0.0, 0.0]]), torch.tensor([0]))
    assert float(found) == pytest.approx(z - 0.85)


# Class weights: with three videos of class 0 and one of class 1 they are 2/3 and 2.

WEIGHTED = pytest.mark.parametrize("weights", ["balanced", [1, 3], [0.5, 1.5]])


@WEIGHTED
def test_clips_count_by_their_class_and_on_average_as_one(weights):
    loss = loss_function(config("SOLVER.CLASS_WEIGHTS", weights), [3, 1])
    even = torch.zeros(4, 2)
    assert float(loss(even[:2], torch.tensor([0, 1]))) == pytest.approx(math.log(2) * 4 / 3)
    assert float(loss(even, torch.tensor([0, 1, 0, 0]))) == pytest.approx(math.log(2))
    mixed = torch.tensor([[0.75, 0.25]])
    assert float(loss(even[:1], mixed)) == pytest.approx(math.log(2))


def test_parts_of_a_mini_batch_have_its_loss_and_smoothing_is_of_the_unweighted_one():
    scores = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([1, 0, 1, 1, 0, 0])
    keys = ("MODEL.LABEL_SMOOTHING", 0.2)
    loss = loss_function(config("SOLVER.CLASS_WEIGHTS", "balanced", *keys), [3, 1])
    whole = float(loss(scores, labels))
    parts = [float(loss(scores[p::3], labels[p::3])) for p in range(3)]
    assert sum(parts) / 3 == pytest.approx(whole)
    plain = loss_function(config(*keys))
    zeros, ones = (float(plain(scores[labels == c], labels[labels == c])) for c in (0, 1))
    assert whole == pytest.approx((zeros * 2 / 3 + ones * 2) / 2)


@WEIGHTED
def test_of_several_labels_classes_count_and_on_average_as_one(weights):
    """The weights are 1/2 and 3/2."""
    several = ("MODEL.LOSS_FUNC", "bce_logit", "DATA.MULTI_LABEL", True)
    loss = loss_function(config("SOLVER.CLASS_WEIGHTS", weights, *several), [3, 1])
    scores = torch.tensor([[0.0, 100.0]])
    found = [float(loss(scores, torch.tensor([row]))) for row in ([1.0, 1.0], [0.0, 1.0])]
    assert found == pytest.approx([math.log(2) / 4] * 2)
    assert float(loss(torch.zeros(3, 2), torch.eye(2)[[0, 1, 1]])) == pytest.approx(math.log(2))


def test_weights_that_are_all_the_same_are_warned_of(caplog):
    loss_function(config("SOLVER.CLASS_WEIGHTS", "balanced"), [5, 5])
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("SOLVER.CLASS_WEIGHTS balanced has no effect")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("even", "SOLVER.CLASS_WEIGHTS must be balanced, a list"),
        ([1, 0], "SOLVER.CLASS_WEIGHTS must be balanced, a list"),
        ([1, 2, 3], "SOLVER.CLASS_WEIGHTS has 3 weights, but MODEL.NUM_CLASSES is 2. Set one"),
        (2, "SOLVER.CLASS_WEIGHTS takes a list or a string, not 2"),
    ],
)
def test_other_weights_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        check_recipe(config("MODEL.NUM_CLASSES", 2, "SOLVER.CLASS_WEIGHTS", weights))


def train(mixed: bool) -> tuple[list[float], torch.dtype, nn.Module, Precision]:
    """Train a thin model on noise for three steps.

    Returns:
        Its losses, the type of its scores, the model and the precision.
    """
    torch.manual_seed(0)
    shape = ["DATA.NUM_FRAMES", 4, "DATA.TRAIN_CROP_SIZE", 32, "RESNET.WIDTH_PER_GROUP", 8]
    cfg = config(
        "MODEL.ARCH", "c2d", *shape, "MODEL.NUM_CLASSES", 4, "TRAIN.MIXED_PRECISION", mixed
    )
    model = build_model(cfg, grouped_bn=True).train()
    optimizer, precision, losses = build_optimizer(cfg, model), Precision(cfg, CPU), []
    inputs = [torch.randn(4, 3, 4, 32, 32)]
    for _ in range(3):
        optimizer.zero_grad()
        with precision.autocast():
            scores = model(list(inputs))
            loss = loss_function(cfg)(scores, torch.arange(4))
        precision.backward(loss)
        precision.unscale(optimizer)
        clip_gradients(cfg, model)
        precision.step(optimizer)
        losses.append(loss.item())
    return losses, scores.dtype, model, precision


def test_mixed_precision_is_bfloat16_on_the_cpu_and_stays_finite_and_near_single():
    single, dtype, _, _ = train(mixed=False)
    assert dtype == torch.float32
    losses, dtype, model, precision = train(mixed=True)
    assert dtype == torch.bfloat16
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[0] == pytest.approx(single[0], rel=0.02)
    for name, value in model.state_dict().items():
        assert value.dtype in (torch.float32, torch.int64), name
        assert torch.isfinite(value).all(), name
    precision.load_state_dict(precision.state_dict())  # bfloat16 has no loss scale to keep
    assert precision.state_dict() == {}
