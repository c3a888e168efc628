"""Pools on a GPU have the values of a CPU in both memory formats, and reproducible gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from slowfast_patches.models.layers.conv_and_pool import TrainingGlobalPool3d, convert_pools

pytestmark = pytest.mark.gpu

POOLS = {
    "stem": lambda: nn.MaxPool3d([1, 3, 3], [1, 2, 2], [0, 1, 1]),
    "frames": lambda: nn.MaxPool3d([2, 1, 1], [2, 1, 1]),
    "nonlocal": lambda: nn.MaxPool3d([1, 2, 2], [1, 2, 2]),
    "global": lambda: TrainingGlobalPool3d((1, 2, 2), stride=1).train(),
}


def pooled(pool: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    y = pool(x)
    y.backward(torch.linspace(-1, 1, y.numel(), device=y.device).view(y.shape))
    assert x.grad is not None
    return y.detach(), x.grad


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("name", POOLS)
def test_values_and_gradients_are_the_cpus_and_always_the_same(name, memory_format, ties):
    """The 3-D pools of torch have no deterministic gradients on a GPU."""
    x = torch.randn(4, 24, 8, 29, 31, generator=torch.Generator().manual_seed(0))
    x = (x.round().clamp(-1, 1) if ties else x).contiguous(memory_format=memory_format)
    pool = convert_pools(POOLS[name]())
    torch.use_deterministic_algorithms(True)
    results = [pooled(pool, x.cuda()) for _ in range(3)]
    for made, wanted in zip(results[0], pooled(pool, x), strict=True):
        assert made.is_contiguous(memory_format=memory_format)
        torch.testing.assert_close(made.cpu(), wanted)
    for again in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(again, results[0], strict=True))
