"""Whether processes train one model, by what each of them tells the others."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from multigrid import agreement


@pytest.fixture
def told(monkeypatch):
    """`told(model, other, are_copied)`: the warnings, and what a process tells the other one.

    `other` is what the other process tells: the sums of its weights and of its running means.
    """

    def differences(model, other, are_copied=True):
        said = []

        def gather(found, local):
            said.append(local)
            found[:] = [local, other]

        monkeypatch.setattr(agreement.dist, "get_world_size", lambda: 2)
        monkeypatch.setattr(agreement.dist, "all_gather_object", gather)
        texts = agreement.differences(model, are_copied=are_copied)
        return texts, said[0]

    return differences


@pytest.fixture
def model():
    """A model whose trained weights have the sum 6, and whose running means have the sum 4."""
    model = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm3d(2, affine=False), nn.Linear(1, 1))
    model.append(nn.BatchNorm3d(1, affine=False, track_running_stats=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 2.0]]))
        model[0].bias.fill_(3.0)
        model[1].running_mean.copy_(torch.tensor([5.0, -1.0]))
    model[2].requires_grad_(False)
    return model


def test_equal_processes_differ_in_nothing(told, model):
    assert told(model, (6.0, 4.0)) == ((), (6.0, 4.0))


def test_different_weights_are_told_with_their_cause(told, model):
    (text,), _ = told(model, (6.5, 4.0))
    assert "gradients are not averaged. Compute the loss with the model" in text


def test_different_statistics_matter_only_where_those_of_one_process_are_copied(told, model):
    (text,), _ = told(model, (6.0, 4.5))
    assert "Pass broadcast_buffers=False" in text
    assert told(model, (6.0, 4.5), are_copied=False)[0] == ()
    assert len(told(model, (6.5, 4.5))[0]) == 2


def test_divided_weights_are_not_compared(told, model):
    class Part(nn.Parameter):
        pass

    model[0].bias = Part(torch.zeros(1))
    assert told(model, (0.0, 4.0)) == ((), (0.0, 4.0))


def test_a_forward_broadcasts_if_its_ddp_does(monkeypatch):
    ddp = agreement.DistributedDataParallel
    assert not agreement.broadcasts_buffers()
    for copies in (True, False):
        wrapper = type("Wrapper", (), {"broadcast_buffers": copies})
        monkeypatch.setattr(ddp, "_active_ddp_module", wrapper)
        assert agreement.broadcasts_buffers() is copies
