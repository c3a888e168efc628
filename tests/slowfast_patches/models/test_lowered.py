"""Weights that are cast together equal those that autocast casts one by one, bit for bit."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from slowfast_patches.models import solver
from slowfast_patches.models.solver import LoweredWeights


class Net(nn.Module):
    """A tied, a frozen and an unused layer, and weights in a layer that autocast does not cast."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(3, 4, 3, padding=1)
        self.norm = nn.LayerNorm(4)
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.unused = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x).mean((2, 3, 4)))
        return self.frozen(self.second(self.first(x).relu()))


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def take(model: nn.Module, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    with torch.autocast("cpu", torch.bfloat16):
        output = model(torch.randn(4, 3, 2, 5, 5, generator=generator))
        output.float().square().sum().backward()
    return output


@pytest.mark.parametrize("world", [1, 2])
def test_two_micro_batches_have_the_outputs_and_gradients_of_autocast(world, monkeypatch):
    monkeypatch.setattr(solver, "is_alone", lambda: world == 1)
    monkeypatch.setattr(solver, "_WEIGHTS_AT_ONCE", 2)
    plain, ours = net(), net()
    weights = LoweredWeights(list(ours.modules()), torch.bfloat16)
    for start in (0, 2):  # the weights change between the steps
        with weights.lowered():
            for seed in (start, start + 1):
                assert torch.equal(take(ours, seed), take(plain, seed))
        for (name, found), expected in zip(
            ours.named_parameters(), plain.parameters(), strict=True
        ):
            assert (found.grad is None) == (expected.grad is None), name
            assert found.grad is None or torch.equal(found.grad, expected.grad), name
        for model in (ours, plain):
            torch.optim.SGD(model.parameters(), 0.1).step()
            model.zero_grad()


def test_layers_have_their_parameters_again_even_after_an_error():
    model = net()
    before = dict(model.named_parameters())
    weights = LoweredWeights(list(model.modules()), torch.bfloat16)

    def fail() -> None:
        with weights.lowered():
            assert model.conv.weight.dtype == torch.bfloat16
            assert model.norm.weight.dtype == torch.float32
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    after = dict(model.named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)


@pytest.mark.parametrize(("world", "counts"), [(1, [7]), (2, [2, 2, 2, 1])])
def test_gradients_become_known_together_or_in_groups_if_processes_exchange_them(
    world, counts, monkeypatch
):
    """Of the 9 weights of the convolution and the linear layers, 2 are frozen."""
    monkeypatch.setattr(solver, "is_alone", lambda: world == 1)
    monkeypatch.setattr(solver, "_WEIGHTS_AT_ONCE", 2)
    model = net()
    layers = (model.conv, model.first, model.second, model.unused, model.frozen)
    with LoweredWeights(list(model.modules()), torch.bfloat16).lowered():
        halves = {id(p): p for layer in layers for p in layer._parameters.values()}
        casts = Counter(half.grad_fn for half in halves.values())
        assert casts.pop(None) == 2
        assert list(casts.values()) == counts
        assert {half.dtype for half in halves.values()} == {torch.bfloat16}
        assert model.first.weight is model.second.weight


def test_a_model_without_trained_or_frozen_weights_may_be_lowered():
    for trained in (True, False):
        layer = nn.Linear(2, 2).requires_grad_(trained)
        with LoweredWeights([layer], torch.bfloat16).lowered():
            assert layer.weight.dtype == torch.bfloat16
        assert layer.weight.dtype == torch.float32
