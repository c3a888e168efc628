"""Optimizers, weight decay, clipping and precision, worked out by hand."""

import pytest
import torch
from torch import nn

from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.models.build_model import build_model
from slowfast_patches.models.solver import (
    autocast,
    build_optimizer,
    clip_gradients,
    grad_scaler,
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


@pytest.mark.parametrize(
    ("overrides", "weight", "bias", "norm"),
    [
        (["SOLVER.NESTEROV", False], 0.75, 0.75, 0.875),
        (["SOLVER.NESTEROV", False, "SOLVER.ZERO_WD_1D_PARAM", True], 0.75, 1.0, 0.875),
        (["SOLVER.OPTIMIZING_METHOD", "adamw"], 0.75, 0.75, 0.875),
        # Adam adds the decay to the gradient and moves the weight by the rate.
        (["SOLVER.OPTIMIZING_METHOD", "adam"], 0.0, 0.0, 0.0),
    ],
)
def test_norms_and_biases_have_their_own_weight_decay(overrides, weight, bias, norm):
    """A step of rate 1 with zero gradients leaves 1 - decay of a parameter."""
    decays = ["SOLVER.WEIGHT_DECAY", 0.25, "BN.WEIGHT_DECAY", 0.125]
    cfg, net = config("SOLVER.BASE_LR", 1.0, "SOLVER.MOMENTUM", 0.0, *decays, *overrides), Net()
    optimizer = build_optimizer(cfg, net)
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    parameters = (net.linear.weight, net.linear.bias, net.bn.weight, net.bn.bias)
    found = [value.mean().item() for value in parameters]
    assert found == pytest.approx([weight, bias, norm, norm], abs=1e-6)


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


def test_mixed_precision_is_bfloat16_on_the_cpu_and_near_single():
    logits = {}
    for mixed in (False, True):
        torch.manual_seed(0)
        cfg = config(
            "MODEL.ARCH", "c2d", "RESNET.WIDTH_PER_GROUP", 8, "TRAIN.MIXED_PRECISION", mixed
        )
        model = build_model(cfg, grouped_bn=True).train()
        with autocast(cfg, CPU):
            logits[mixed] = model([torch.ones(2, 3, 4, 32, 32)])
        assert not grad_scaler(cfg, CPU).is_enabled()  # bfloat16 needs no loss scale
    assert (logits[False].dtype, logits[True].dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(logits[True].float(), logits[False], rtol=0.02, atol=0.02)
