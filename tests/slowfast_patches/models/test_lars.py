"""SOLVER.OPTIMIZING_METHOD lars, by steps worked out by hand."""

import importlib.util
import io
import logging

import pytest
import torch
from torch import Tensor, nn

from slowfast_patches.config import check_recipe, load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.models.solver import build_optimizer, set_learning_rate

LARS = ["SOLVER.OPTIMIZING_METHOD", "lars", "SOLVER.LARS_TRUST", 0.1, "NUM_GPUS", 0]
PLAIN = ["SOLVER.BASE_LR", 0.5, "SOLVER.MOMENTUM", 0.0, "SOLVER.WEIGHT_DECAY", 0.0]
PLAIN += ["SOLVER.NESTEROV", False]


def config(*overrides: object) -> Recipe:
    return load_recipe(None, [*LARS, *PLAIN, *overrides])


class Net(nn.Module):
    """A weight of norm 5, a bias, and a norm's scale and shift."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.bn = nn.BatchNorm1d(2)
        self.linear.weight.data = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
        for vector in (self.linear.bias, self.bn.weight, self.bn.bias):
            nn.init.ones_(vector)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.linear(x))


def set_gradients(net: Net) -> None:
    """Of norm 10 for the weight; [2, 4] for each vector."""
    for vector in (net.linear.bias, net.bn.weight, net.bn.bias):
        vector.grad = torch.tensor([2.0, 4.0])
    net.linear.weight.grad = torch.tensor([[0.0, 6.0], [8.0, 0.0]])


def stepped(*overrides: object) -> tuple[Net, torch.optim.Optimizer]:
    """A net after one step, and its optimizer."""
    net = Net()
    optimizer = build_optimizer(config(*overrides), net)
    set_gradients(net)
    optimizer.step()
    return net, optimizer


def assert_weight(net: Net, *expected: float) -> None:
    assert net.linear.weight.flatten().tolist() == pytest.approx(expected)


# Steps.


def test_a_step_of_a_weight_by_hand():
    """A ratio of 0.1 · 5 / 10 = 0.05, at a rate of 0.5: 0.025 times the gradient."""
    net, _ = stepped()
    assert_weight(net, 3, -0.15, -0.2, 4)


def test_decay_counts_in_the_ratio_and_in_what_it_multiplies():
    """0.1 · 5 / (10 + 0.5 · 5) = 0.04, times 0.5; the gradient and half the weight are [1.5, 6] and
    [8, 2]."""
    net, _ = stepped("SOLVER.WEIGHT_DECAY", 0.5)
    assert_weight(net, 2.97, -0.12, -0.16, 3.96)


def test_the_trust_coefficient_multiplies_the_step():
    net, _ = stepped("SOLVER.LARS_TRUST", 0.2)
    assert_weight(net, 3, -0.3, -0.4, 4)
    assert load_recipe(None).solver.lars_trust == 0.001


def test_vectors_have_plain_descent_without_decay():
    net, _ = stepped("SOLVER.WEIGHT_DECAY", 0.5, "BN.WEIGHT_DECAY", 0.25)
    for vector in (net.linear.bias, net.bn.weight, net.bn.bias):
        assert vector.tolist() == [0.0, -1.0]


def test_momentum_dampening_and_nesterov_by_hand():
    """The second step has no gradient: half of the first one's buffer, 0.05 times the gradient."""
    net, optimizer = stepped("SOLVER.MOMENTUM", 0.5)
    assert_weight(net, 3, -0.15, -0.2, 4)
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert_weight(net, 3, -0.225, -0.3, 4)
    # 1 - 0.75 of it enters the buffer.
    net, _ = stepped("SOLVER.MOMENTUM", 0.5, "SOLVER.DAMPENING", 0.75)
    assert_weight(net, 3, -0.0375, -0.05, 4)
    # The buffer's half once more.
    net, _ = stepped("SOLVER.MOMENTUM", 0.5, "SOLVER.NESTEROV", True)
    assert_weight(net, 3, -0.225, -0.3, 4)


# Groups.


def test_the_groups_are_those_of_sgd():
    def groups(*overrides: object) -> list[tuple[list[str], float]]:
        net = Net()
        names = {id(parameter): name for name, parameter in net.named_parameters()}
        decays = ["SOLVER.WEIGHT_DECAY", 0.5, "BN.WEIGHT_DECAY", 0.25]
        found = build_optimizer(config(*decays, *overrides), net).param_groups
        return [([names[id(p)] for p in g["params"]], g["weight_decay"]) for g in found]

    sgd = ["SOLVER.OPTIMIZING_METHOD", "sgd"]
    assert groups() == groups(*sgd)
    asked = ["SOLVER.ZERO_WD_1D_PARAM", True]
    assert groups(*asked) == groups(*asked, *sgd)
    assert groups(*asked)[2] == (["linear.bias"], 0.0)


# Many steps.


def train(net: Net, optimizer: torch.optim.Optimizer, iterations: range) -> None:
    for i in iterations:
        inputs = torch.randn(8, 2, generator=torch.Generator().manual_seed(i))
        set_learning_rate(optimizer, 0.1 / (1 + i))
        optimizer.zero_grad(set_to_none=True)
        (net(inputs) ** 3).mean().backward()
        optimizer.step()


FULL = ["SOLVER.MOMENTUM", 0.9, "SOLVER.WEIGHT_DECAY", 1e-2, "SOLVER.NESTEROV", True]


def test_a_training_continues_from_its_saved_state_bit_for_bit():
    cfg, whole, half, again = config(*FULL), Net(), Net(), Net()
    train(whole, build_optimizer(cfg, whole), range(6))
    optimizer, file = build_optimizer(cfg, half), io.BytesIO()
    train(half, optimizer, range(3))
    torch.save([half.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    optimizer = build_optimizer(cfg, again)
    again.load_state_dict(weights)
    optimizer.load_state_dict(state)
    train(again, optimizer, range(3, 6))
    assert {group["step"] for group in optimizer.param_groups} == {6}
    for name, value in whole.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


# What is said before anything starts.


def check(*overrides: object) -> None:
    check_recipe(load_recipe(None, ["MODEL.ARCH", "slowonly", "NUM_GPUS", 0, *overrides]))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if "optimizer" in name else find(name)
    )
    check()
    with pytest.raises(ImportError, match=r"lars needs .* pip install pytorch-optimizer"):
        check(*LARS)


def test_what_has_no_effect_is_said(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        check(*LARS, "SOLVER.WEIGHT_DECAY", 1e-4)
        assert not caplog.records
        check(*LARS, "BN.WEIGHT_DECAY", 1e-4)
        check("SOLVER.LARS_TRUST", 0.02)
    of_bn, of_trust = (record.getMessage() for record in caplog.records)
    assert "BN.WEIGHT_DECAY 0.0001 has no effect" in of_bn
    assert "SOLVER.LARS_TRUST 0.02 has no effect with SOLVER.OPTIMIZING_METHOD sgd" in of_trust
