"""Planar pools have the values, gradients and memory formats of torch's 3-D pools."""

import pytest
import torch
from torch import Tensor, nn

from slowfast_patches.models.layers.conv_and_pool import TrainingGlobalPool3d, convert_pools

FORMATS = [torch.contiguous_format, torch.channels_last_3d]
both_formats = pytest.mark.parametrize("memory_format", FORMATS, ids=["contiguous", "last"])

# Pools of PySlowFast's models, and windows that are not planar.
POOLS = {
    "stem": nn.MaxPool3d([1, 3, 3], [1, 2, 2], [0, 1, 1]),
    "frames": nn.MaxPool3d([2, 1, 1], [2, 1, 1]),
    "nonlocal": nn.MaxPool3d([1, 2, 2], [1, 2, 2]),
    "none": nn.MaxPool3d([1, 1, 1], [1, 1, 1]),
    "thinned frames": nn.MaxPool3d((1, 2, 2), (2, 2, 2)),
}


def pooled(pool: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output and the gradient of the input, for a varying output gradient."""
    x = x.detach().requires_grad_()
    y = pool(x)
    y.backward(torch.arange(1.0, y.numel() + 1, dtype=y.dtype).view(y.shape).sqrt())
    assert x.grad is not None
    return y.detach(), x.grad


@both_formats
@pytest.mark.parametrize("name", POOLS)
def test_values_and_gradients_are_those_of_the_pool_in_three_dimensions(name, memory_format):
    torch.manual_seed(0)
    # With values in {-1, 0, 1}, nearly every window has several largest values.
    x = torch.randint(-1, 2, (2, 5, 4, 7, 9)).double().contiguous(memory_format=memory_format)
    ours, gradient = pooled(convert_pools(POOLS[name]), x)
    wanted, wanted_gradient = pooled(POOLS[name], x)
    assert torch.equal(ours, wanted)
    assert ours.is_contiguous(memory_format=memory_format)
    torch.testing.assert_close(gradient, wanted_gradient, rtol=1e-14, atol=0)
    assert torch.equal(gradient == 0, wanted_gradient == 0), "another of equal values was chosen"


@both_formats
@pytest.mark.parametrize(("name", "side"), [("stem", 1), ("frames", 6), ("global", 1)])
def test_gradients_lie_in_memory_as_the_inputs_do(name, side, memory_format):
    """The strides show the memory format even where H and W are 1."""
    pool = TrainingGlobalPool3d(1) if name == "global" else convert_pools(POOLS[name])
    seen = list[Tensor]()
    leaf = torch.randn(2, 5, 8, side, side, requires_grad=True)
    x = leaf.contiguous(memory_format=memory_format) * 1
    x.register_hook(seen.append)
    y = pool(x)
    if name == "global":
        torch.testing.assert_close(y, x.mean((2, 3, 4), keepdim=True))
    for given in (torch.rand_like(y), torch.rand(y.shape), torch.rand(()).expand_as(y)):
        y.backward(given, retain_graph=True)
    assert [gradient.stride() for gradient in seen] == [x.stride()] * 3
