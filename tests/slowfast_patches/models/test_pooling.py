"""Planar pools have the values, gradients and memory formats of torch's 3-D pools."""

import pytest
import torch
from torch import Tensor, nn

from slowfast_patches.models.layers.conv_and_pool import (
    MeanOverFrames,
    TrainingGlobalPool3d,
    convert_pools,
)

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
    converted = convert_pools(POOLS[name])
    assert isinstance(converted, nn.MaxPool3d) == (name == "thinned frames")
    ours, gradient = pooled(converted, x)
    wanted, wanted_gradient = pooled(POOLS[name], x)
    assert torch.equal(ours, wanted)
    assert ours.is_contiguous(memory_format=memory_format)
    torch.testing.assert_close(gradient, wanted_gradient, rtol=1e-14, atol=0)
    assert torch.equal(gradient == 0, wanted_gradient == 0), "another of equal values was chosen"


@pytest.mark.parametrize("window", [(1, 2, 2), (2, 1, 1), (1, 1, 1)])
@pytest.mark.parametrize("option", ["ceil_mode", "return_indices"])
def test_pools_with_options_that_planar_pools_lack_stay_as_they_are(window, option):
    pool = nn.MaxPool3d(window, **{option: True})
    assert convert_pools(pool) is pool


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": (1, 2, 2), "dilation": (2, 1, 1)},
        {"kernel_size": (2, 1, 1), "stride": (2, 1, 2)},
        {"kernel_size": (1, 1, 1), "stride": (2, 1, 1)},
        {"kernel_size": (1, 1, 1), "stride": (1, 1, 2)},
        {"kernel_size": (3, 1, 1), "padding": (1, 0, 0)},
        {"kernel_size": (2, 1, 1), "dilation": (3, 1, 1)},
        {"kernel_size": (1, 3, 3), "padding": (0, 1, 1), "dilation": (1, 2, 2)},
    ],
)
def test_strides_paddings_and_dilations_of_any_axis_count(options):
    torch.manual_seed(0)
    pool, x = nn.MaxPool3d(**options), torch.randn(2, 3, 6, 7, 8)
    assert torch.equal(convert_pools(pool)(x), pool(x))


def test_a_window_of_one_pixel_is_removed():
    assert isinstance(convert_pools(nn.MaxPool3d(1)), nn.Identity)


@both_formats
def test_a_head_pools_all_in_training_and_slides_a_window_in_evaluation(memory_format):
    """Of 4 × 5 × 5 pixels, a window of 4 × 3 × 3 with a stride of 2 gives 1 × 2 × 2 means."""
    x = torch.randn(2, 3, 4, 5, 5, dtype=torch.float64).contiguous(memory_format=memory_format)
    pool = TrainingGlobalPool3d((4, 3, 3), stride=2)
    torch.testing.assert_close(pool.train()(x), x.mean((2, 3, 4), keepdim=True))
    shown = pool.eval()(x)
    assert shown.shape == (2, 3, 1, 2, 2)
    torch.testing.assert_close(shown[..., 0, 1, 0], x[..., 2:5, :3].mean((2, 3, 4)))
    torch.testing.assert_close(MeanOverFrames()(x), x.mean(2, keepdim=True))


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


@pytest.mark.parametrize("x", [torch.ones(2, 5, 1, 1, 1), torch.ones(2, 5, 4, 3, 6)[..., ::2]])
def test_gradients_of_other_layouts_are_contiguous(x):
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(TrainingGlobalPool3d(1)(x).sum(), x)
    assert gradient.stride() == torch.empty(x.shape).stride()
    assert torch.equal(gradient, torch.full(x.shape, 10 / x.numel()))
