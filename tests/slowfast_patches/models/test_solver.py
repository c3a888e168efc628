"""Optimizers, weight decay, clipping, losses and precision of a recipe, by hand."""

import io
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
    """A weight, a bias and a norm, all ones."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.bn = nn.Linear(2, 2), nn.BatchNorm1d(2)
        for parameter in self.parameters():
            nn.init.ones_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.linear(x))


def decayed(*overrides: object) -> dict[str, float]:
    """The value of each parameter after a step of rate 1 without gradients: 1 - its decay."""
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
    """Those of a gradient of zero are zero: a weight loses rate · decay, where adam takes the decay
    for a gradient and moves the weight by the rate."""
    assert decayed("SOLVER.OPTIMIZING_METHOD", "adamw") == DECAYED
    adam = decayed("SOLVER.OPTIMIZING_METHOD", "adam")
    assert adam["linear.weight"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("method", ["sgd", "adamw"])
def test_biases_are_freed_of_weight_decay_where_the_recipe_asks(method):
    asked = ["SOLVER.ZERO_WD_1D_PARAM", True, "SOLVER.NESTEROV", False]
    values = decayed("SOLVER.OPTIMIZING_METHOD", method, *asked)
    assert values["linear.bias"] == 1.0
    assert values["linear.weight"] < 1.0


# LARS.

LARS = ["SOLVER.OPTIMIZING_METHOD", "lars", "SOLVER.LARS_TRUST", 0.1]
PLAIN = ["SOLVER.BASE_LR", 0.5, "SOLVER.MOMENTUM", 0.0, "SOLVER.WEIGHT_DECAY", 0.0]
PLAIN += ["SOLVER.NESTEROV", False]


def stepped(*overrides: object) -> Net:
    """A net after one step of lars: its weight has norm 5 and a gradient of norm 10."""
    net = Net()
    net.linear.weight.data = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    for vector in (net.linear.bias, net.bn.weight, net.bn.bias):
        vector.grad = torch.tensor([2.0, 4.0])
    net.linear.weight.grad = torch.tensor([[0.0, 6.0], [8.0, 0.0]])
    build_optimizer(config(*LARS, *PLAIN, *overrides), net).step()
    return net


@pytest.mark.parametrize(
    ("overrides", "weight"),
    [
        # A ratio of 0.1 · 5 / 10 = 0.05, at a rate of 0.5: 0.025 times the gradient.
        ([], [3, -0.15, -0.2, 4]),
        # 0.1 · 5 / (10 + 0.5 · 5) = 0.04, times 0.5; the gradient and half the weight are
        # [1.5, 6] and [8, 2].
        (["SOLVER.WEIGHT_DECAY", 0.5], [2.97, -0.12, -0.16, 3.96]),
        # 1 - 0.75 of it enters the buffer.
        (["SOLVER.MOMENTUM", 0.5, "SOLVER.DAMPENING", 0.75], [3, -0.0375, -0.05, 4]),
    ],
)
def test_a_step_of_lars_by_hand(overrides, weight):
    net = stepped(*overrides)
    assert net.linear.weight.flatten().tolist() == pytest.approx(weight)


def test_vectors_have_plain_descent_without_decay_in_lars():
    net = stepped("SOLVER.WEIGHT_DECAY", 0.5, "BN.WEIGHT_DECAY", 0.25)
    for vector in (net.linear.bias, net.bn.weight, net.bn.bias):
        assert vector.tolist() == [0.0, -1.0]


def train_lars(net: Net, optimizer: torch.optim.Optimizer, iterations: range) -> None:
    for i in iterations:
        inputs = torch.randn(8, 2, generator=torch.Generator().manual_seed(i))
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (1 + i)
        optimizer.zero_grad(set_to_none=True)
        (net(inputs) ** 3).mean().backward()
        optimizer.step()


def test_a_training_with_lars_continues_from_its_saved_state_bit_for_bit():
    full = ["SOLVER.MOMENTUM", 0.9, "SOLVER.WEIGHT_DECAY", 1e-2, "SOLVER.NESTEROV", True]
    cfg, whole, half, again = config(*LARS, *PLAIN, *full), Net(), Net(), Net()
    train_lars(whole, build_optimizer(cfg, whole), range(6))
    optimizer, file = build_optimizer(cfg, half), io.BytesIO()
    train_lars(half, optimizer, range(3))
    torch.save([half.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    optimizer = build_optimizer(cfg, again)
    again.load_state_dict(weights)
    optimizer.load_state_dict(state)
    train_lars(again, optimizer, range(3, 6))
    for name, value in whole.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


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
    """Of 4 classes, 0.2 smoothed: 0.85 of its own and 0.05 of each other one; scores of e, 1, 1, 1
    have log-probabilities 1 - z and -z."""
    z = math.log(math.e + 3)
    loss = loss_function(config("MODEL.LABEL_SMOOTHING", 0.2))
    found = loss(torch.tensor([[1.0, 0.0, 0.0, 0.0]]), torch.tensor([0]))
    assert float(found) == pytest.approx(z - 0.85)


# Weights of classes: of three videos of class 0 and one of class 1, 2/3 and 2.

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
    """1/2 and 3/2."""
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
    """Three steps of a thin model on noise; its losses and the precision of its scores."""
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
