"""Optimizers, weight decay, clipping and precision, worked out by hand."""

import pytest
import torch
from torch import Tensor, nn

from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.models.build import build_model
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


def test_biases_are_freed_of_weight_decay_where_the_recipe_asks():
    values = decayed("SOLVER.ZERO_WD_1D_PARAM", True, "SOLVER.NESTEROV", False)
    assert (values["linear.bias"], values["linear.weight"]) == (1.0, 0.75)


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
