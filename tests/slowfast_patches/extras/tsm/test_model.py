"""The temporal shift, and the network that shifts in every block."""

import pytest
import torch
from torch import Tensor

from slowfast_patches.config import load_recipe
from slowfast_patches.extras.tsm.tsm_model import ShiftedConv3d, temporal_shift
from slowfast_patches.models.build_model import build_model, build_on_meta
from tests.conftest import assert_same_run
from tests.slowfast_patches.models.test_models import THIN
from tests.slowfast_patches.train.conftest import At, die


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


def test_the_network_is_the_hosts_whose_blocks_shift_by_a_plain_loop():
    torch.manual_seed(0)
    ours = build_model(load_recipe(None, [*THIN, "MODEL.ARCH", "tsm", "TSM.SHIFT_DIV", 4]))
    plain = build_model(load_recipe(None, [*THIN, "MODEL.ARCH", "c2d_nopool"]))
    plain.load_state_dict(ours.state_dict())
    for model in (ours, plain):
        model.double().train()
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm3d):
                torch.nn.init.ones_(module.weight)
    for name, module in plain.named_modules():
        if name.endswith("branch2.a"):
            channels = module.in_channels // 4
            module.register_forward_pre_hook(lambda _, x, c=channels: (shift_by_loop(x[0], c),))
    x = torch.randn(2, 3, 4, 32, 32, dtype=torch.float64)
    found, expected = ours([x]), plain([x])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    weights = [network.s2.pathway0_res0.branch2.a.weight for network in (ours, plain)]
    gradients = [
        torch.autograd.grad(y.square().sum(), weight)[0]
        for y, weight in zip((found, expected), weights, strict=True)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-7, atol=1e-12)
    assert gradients[0].any()


@pytest.mark.slow("trains for seconds")
def test_a_whole_training_with_validations_and_a_test_resumes_bit_for_bit(run_small, tmp_path):
    keys = ("MODEL.ARCH", "tsm", "TSM.SHIFT_DIV", 4)
    whole = run_small(tmp_path / "whole", *keys)
    assert [line["shape"][0] for line in whole.metrics()] == [16, 8, 4, 16, 8]
    assert whole.result["evaluations"][-1]["iteration"] == 5
    with pytest.raises(SystemExit):
        run_small(tmp_path / "killed", *keys, hooks=[At(3, die)])
    assert_same_run(run_small(tmp_path / "killed", *keys), whole)
    other = run_small(tmp_path / "unshifted", "MODEL.ARCH", "tsm", "TSM.SHIFT_DIV", 0)
    losses = [[line["loss"] for line in run.metrics()] for run in (whole, other)]
    assert losses[0] != losses[1]
