"""Optimizers, weight decay, clipping and precision, worked out by hand."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.models import solver
from slowfast_patches.models.build_model import build_model
from slowfast_patches.models.solver import (
    autocast,
    build_optimizer,
    clip_gradients,
    grad_scaler,
    half_type,
    load_optimizer,
)
from slowfast_patches.registry import MODELS, ModelSpec

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


def test_the_rate_of_a_layer_decays_with_its_distance_from_the_last(monkeypatch):
    """Depths 0 and 2 with a decay of 1/2 give 1/4 and 1. Other parameters count as the last."""
    spec = ModelSpec(depths=lambda net: {net.linear.weight: 0, net.linear.bias: 2})
    monkeypatch.setitem(MODELS.entries, "mine", spec)
    net = Net()
    net.bn.bias.requires_grad_(False)

    def scales(decay: float) -> dict[float, list[nn.Parameter]]:
        optimizer = build_optimizer(config("MODEL.ARCH", "mine", "SOLVER.LAYER_DECAY", decay), net)
        found = dict[float, list[nn.Parameter]]()
        for group in optimizer.param_groups:
            found.setdefault(group["lr_scale"], []).extend(group["params"])
        return found

    halved = scales(0.5)
    assert {scale: [*map(id, found)] for scale, found in halved.items()} == {
        0.25: [id(net.linear.weight)],
        1.0: [id(net.linear.bias), id(net.bn.weight)],
    }
    assert [*scales(1.0)] == [1.0]
    monkeypatch.setitem(MODELS.entries, "mine", ModelSpec())
    assert [*scales(0.5)] == [1.0]


def test_parameters_without_decay_are_those_of_the_axes_that_the_model_names(monkeypatch):
    monkeypatch.setitem(MODELS.entries, "mine", ModelSpec(undecayed_axes=(2,)))
    keys = ("SOLVER.ZERO_WD_1D_PARAM", True, "SOLVER.WEIGHT_DECAY", 0.25)
    net = nn.Linear(2, 2)
    groups = build_optimizer(config("MODEL.ARCH", "mine", *keys), net).param_groups
    assert {id(p): g["weight_decay"] for g in groups for p in g["params"]} == {
        id(net.weight): 0.0,
        id(net.bias): 0.25,
    }


@pytest.mark.parametrize("method", ["sgd", "adam", "adamw"])
def test_the_options_of_the_optimizer_are_those_of_the_recipe(method):
    keys = ("SOLVER.OPTIMIZING_METHOD", method, "SOLVER.BASE_LR", 0.25)
    dampened = ("SOLVER.NESTEROV", False, "SOLVER.MOMENTUM", 0.5, "SOLVER.DAMPENING", 0.125)
    for nesterov in (True, False):
        optimizer = build_optimizer(config(*keys, *(() if nesterov else dampened)), Net())
        options = optimizer.defaults
        assert (options["lr"], options["fused"]) == (0.25, None)
        if method == "sgd":
            expected = (0.9, 0.0, True) if nesterov else (0.5, 0.125, False)
            found = tuple(options[name] for name in ("momentum", "dampening", "nesterov"))
            assert found == expected
    assert build_optimizer(config(*keys), Net(), fused=True).defaults["fused"] is True
    fused = build_optimizer(config(*keys, "SOLVER.FUSED", True), Net())
    assert fused.defaults["fused"] is True


def test_a_loaded_optimizer_keeps_its_own_speed_and_the_layout_of_its_weights():
    """Moments get the memory format of the weights. The steps that Adam counts are a number."""

    def made(memory_format: torch.memory_format, *, fused: bool) -> torch.optim.Optimizer:
        weight = torch.ones(2, 3, 1, 4, 4).contiguous(memory_format=memory_format)
        parameter = nn.Parameter(weight)
        parameter.grad = torch.arange(96.0).view(2, 3, 1, 4, 4) * torch.ones_like(weight)
        return torch.optim.Adam([parameter], 0.25, fused=fused or None)

    first = made(torch.contiguous_format, fused=False)
    first.step()
    ours = made(torch.channels_last_3d, fused=True)
    load_optimizer(ours, first.state_dict())
    assert ours.param_groups[0]["fused"] is True
    (moments,) = ours.state.values()
    (expected,) = first.state.values()
    (weight,) = ours.param_groups[0]["params"]
    assert moments["step"].shape == ()
    for name in ("exp_avg", "exp_avg_sq"):
        assert moments[name].stride() == weight.stride()
        assert torch.equal(moments[name], expected[name])


@pytest.mark.parametrize("count", [1, 3])
def test_the_state_of_another_number_of_groups_is_refused(count):
    def made(groups: int) -> torch.optim.Optimizer:
        weights = [nn.Parameter(torch.ones(2)) for _ in range(groups)]
        return torch.optim.SGD([{"params": [weight]} for weight in weights], 0.1)

    with pytest.raises(ValueError, match="zip"):
        load_optimizer(made(2), made(count).state_dict())


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
    ("device", "emulated", "dtype"),
    [
        ("cpu", False, torch.bfloat16),
        ("cuda", False, torch.bfloat16),
        ("cuda", True, torch.float16),  # a GPU from before Ampere only emulates bfloat16
    ],
)
def test_half_precision_is_float16_only_where_bfloat16_is_emulated(
    monkeypatch, device, emulated, dtype
):
    def supported(including_emulation: bool = True) -> bool:
        return including_emulation or not emulated

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    assert half_type(torch.device(device)) == dtype
    monkeypatch.setattr(solver, "half_type", lambda device: dtype)
    scaled = {
        mixed: grad_scaler(config("TRAIN.MIXED_PRECISION", mixed), CPU).is_enabled()
        for mixed in (False, True)
    }
    assert scaled == {False: False, True: dtype == torch.float16}


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
