"""The temporal shift and the network that shifts in every block."""

from functools import cache

import pytest
import torch
from torch import Tensor, nn

from slowfast_patches import patching
from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe, host_config
from slowfast_patches.models.build import build_model
from slowfast_patches.models.tsm import temporal_shift

THIN = (
    *("MODEL.ARCH", "tsm", "RESNET.WIDTH_PER_GROUP", 8, "MODEL.NUM_CLASSES", 4),
    *("MODEL.DROPOUT_RATE", 0.0, "DATA.NUM_FRAMES", 8, "DATA.TRAIN_CROP_SIZE", 32),
    *("DATA.TEST_CROP_SIZE", 32, "DATA.TRAIN_JITTER_SCALES", [32, 40], "NUM_GPUS", 0),
)


def thin(*overrides: object) -> Recipe:
    return load_recipe(None, [*THIN, *overrides])


def c2d_nopool(cfg: Recipe) -> nn.Module:
    """Build the 2-D network by PySlowFast's own code."""
    patching.apply()
    from slowfast.models.video_model_builder import ResNetModel

    return ResNetModel(host_config(cfg.replaced({"MODEL.ARCH": "c2d_nopool"})))


@cache
def shaken_state() -> dict[str, Tensor]:
    """Return weights with which no block is the identity, and matching running statistics."""
    torch.manual_seed(0)
    model = c2d_nopool(thin())
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm3d)):
        nn.init.uniform_(norm.weight, 0.5, 1.0)
        nn.init.normal_(norm.bias, std=0.1)
        norm.momentum = 1.0
    nn.init.normal_(model.head.projection.weight, std=0.1)
    with torch.no_grad():
        model.train()([torch.randn(2, 3, 8, 32, 32)])
    return model.state_dict()


def made(*overrides: object) -> nn.Module:
    model = build_model(thin(*overrides))
    model.load_state_dict(shaken_state())
    return model


def clips() -> Tensor:
    return torch.randn(2, 3, 8, 32, 32, generator=torch.Generator().manual_seed(1))


# The shift.


def shift_by_loop(x: Tensor, channels: int) -> Tensor:
    out = 0 * x
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            for t in range(x.shape[2]):
                source = t + 1 if c < channels else t - 1 if c < 2 * channels else t
                if 0 <= source < x.shape[2]:
                    out[n, c, t] = x[n, c, source]
    return out


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("frames", [1, 2, 8])
@pytest.mark.parametrize(("channels", "shifted"), [(7, 3), (4, 2), (3, 0)])
def test_a_shift_is_the_plain_loops_in_memory_of_its_own_in_the_same_format(
    frames: int, channels: int, shifted: int, memory: torch.memory_format
):
    x = torch.randn(2, channels, frames, 3, 2).to(memory_format=memory).requires_grad_()
    found = temporal_shift(x, shifted)
    assert torch.equal(found, shift_by_loop(x, shifted))
    assert found.stride() == x.stride()
    assert found.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    gradients = torch.rand_like(found)
    (ours,) = torch.autograd.grad(found, x, gradients)
    (wanted,) = torch.autograd.grad(shift_by_loop(x, shifted), x, gradients)
    assert torch.equal(ours, wanted)
    assert ours.stride() == x.stride()


# The network.


def test_without_a_shift_it_is_the_hosts_2d_network_and_with_one_it_is_not():
    networks = c2d_nopool(thin()), made("TSM.SHIFT_DIV", 0), made()
    networks[0].load_state_dict(shaken_state())
    host, plain, shifted = (network.double() for network in networks)
    x = clips().double()  # in double precision, rounding differs by at most 1e-12
    for training in (False, True):
        expected = host.train(training)([x]).detach()
        torch.testing.assert_close(plain.train(training)([x]), expected, rtol=0, atol=1e-12)
        assert (shifted.train(training)([x]) - expected).abs().max() > 1e-3
