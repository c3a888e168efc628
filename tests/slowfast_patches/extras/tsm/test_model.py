"""The temporal shift, and the network that shifts in every block."""

import pytest
import torch
from torch import Tensor

from slowfast_patches.config import load_recipe
from slowfast_patches.extras.tsm.tsm_model import ShiftedConv3d, temporal_shift
from slowfast_patches.models.build_model import build_on_meta


def shift_by_loop(x: Tensor, channels: int) -> Tensor:
    out = 0 * x
    for c in range(x.shape[1]):
        for t in range(x.shape[2]):
            source = t + 1 if c < channels else t - 1 if c < 2 * channels else t
            if 0 <= source < x.shape[2]:
                out[:, c, t] = x[:, c, source]
    return out


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("frames", [1, 2, 8])
@pytest.mark.parametrize(("channels", "shifted"), [(7, 3), (5, 2)])
def test_a_shift_is_the_plain_loops_in_the_same_format(frames, channels, shifted, memory):
    x = torch.randn(2, channels, frames, 3, 2).to(memory_format=memory).requires_grad_()
    found, expected = temporal_shift(x, shifted), shift_by_loop(x, shifted)
    assert torch.equal(found, expected)
    assert found.stride() == x.stride()
    ours, wanted = (torch.autograd.grad(y, x, torch.ones_like(x) + x)[0] for y in (found, expected))
    assert torch.equal(ours, wanted)
    assert ours.stride() == x.stride()


def test_every_block_begins_with_a_shift_of_an_eighth_of_its_channels():
    model = build_on_meta(load_recipe(None, ["MODEL.ARCH", "tsm", "TSM.SHIFT_DIV", 8]))
    shifts = {n: m for n, m in model.named_modules() if isinstance(m, ShiftedConv3d)}
    assert len(shifts) == 16
    for name, shift in shifts.items():
        assert name.endswith(".branch2.a")
        assert shift.shifted_channels == shift.in_channels / 8
