"""`PlanarConv3d` has the values and gradients of `nn.Conv3d`, and replaces the right kernels."""

import copy

import pytest
import torch
from torch import Tensor, nn

from slowfast_patches.models.layers.conv_and_pool import convert_convolutions

# Convolutions of PySlowFast's models: (channels in, out), kernel, stride. Padding keeps the size.
PLANAR = {
    "1×1×1": ((6, 9), (1, 1, 1), (1, 1, 1)),
    "1×1×1, every other frame": ((6, 9), (1, 1, 1), (2, 3, 4)),
    "3×1×1": ((6, 9), (3, 1, 1), (1, 1, 1)),
    "fusion": ((6, 9), (5, 1, 1), (4, 1, 1)),
    "thin stem": ((3, 2), (5, 7, 7), (1, 2, 2)),
}
KERNELS = PLANAR | {
    "1×3×3": ((6, 9), (1, 3, 3), (1, 2, 2)),
    "wide stem": ((3, 16), (5, 7, 7), (1, 2, 2)),
    "every other frame": ((3, 2), (3, 3, 3), (2, 1, 1)),
}


def convolution(name: str, **options: object) -> nn.Conv3d:
    channels, kernel, stride = KERNELS[name]
    torch.manual_seed(0)
    padding = tuple(size // 2 for size in kernel)
    return nn.Conv3d(*channels, kernel, stride, padding, dtype=torch.float64, **options)


def clips(module: nn.Conv3d, *size: int) -> Tensor:
    return torch.randn(2, module.in_channels, *size, dtype=torch.float64)


def passed(module: nn.Conv3d, x: Tensor) -> list[Tensor]:
    """Return the output and the gradients of input and parameters, from varying gradients."""
    x = x.detach().requires_grad_()
    y = module(x)
    weights = torch.arange(1.0, y.numel() + 1, dtype=y.dtype).view(y.shape).sqrt()
    return [y.detach(), *torch.autograd.grad(y, [x, *module.parameters()], weights)]


@pytest.mark.parametrize("size", [(1, 9, 8), (3, 9, 8), (8, 9, 8), (2, 1, 1), (2, 2, 3)])
@pytest.mark.parametrize("name", KERNELS)
def test_values_and_gradients_are_those_in_three_dimensions(name, size, monkeypatch):
    """Some kernels are larger than the clip. Those that gain by it use no 3-D convolution."""
    plain = convolution(name, bias=size[0] != 3)
    planar, x = convert_convolutions(copy.deepcopy(plain)), clips(plain, *size)
    expected = passed(plain, x)
    if name in PLANAR and size[0] > 1:
        monkeypatch.delattr(nn.functional, "conv3d")
    for ours, wanted in zip(passed(planar, x), expected, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-12, atol=1e-12 * wanted.abs().max())
    assert planar(x).is_contiguous()  # BN of small clips is ten times as slow in another format


def test_the_stem_compiles_into_one_graph():
    module = convert_convolutions(convolution("thin stem"))
    x = clips(module, 4, 9, 8)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    for ours, wanted in zip(passed(compiled, x), passed(module, x), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("options", [{"groups": 3}, {"dilation": (2, 1, 1)}])
def test_other_convolutions_stay_torchs_own(options):
    plain = convolution("3×1×1", **options)
    x = clips(plain, 8, 9, 8)
    assert torch.equal(convert_convolutions(copy.deepcopy(plain))(x), plain(x))


@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "size"),
    [
        ((64, 64), (1, 3, 3), (1, 2, 2), (1, 1, 1)),
        ((3, 32), (5, 7, 7), (1, 1, 1), (1, 7, 7)),
    ],
)
def test_half_precision_where_a_kernel_is_larger_than_the_clip(channels, kernel, stride, size):
    """On processors with AMX, oneDNN 3.12 reads uninitialised memory in this case."""
    padding = tuple(side // 2 for side in kernel)
    torch.manual_seed(0)
    plain = nn.Conv3d(*channels, kernel, stride, padding, bias=False)
    planar, x = convert_convolutions(copy.deepcopy(plain)), torch.randn(8, channels[0], *size)
    wanted = passed(plain, x)
    for _ in range(10):
        unwritten = [torch.full((2**k,), torch.nan) for k in range(6, 20) for _ in range(3)]
        del unwritten
        with torch.autocast("cpu", torch.bfloat16):
            halves = passed(planar, x)
        assert halves[0].dtype == torch.bfloat16
        for ours, of_torch in zip(halves, wanted, strict=True):
            assert (ours - of_torch).abs().max() < 0.02 * of_torch.abs().max()


def test_parameters_are_the_same_under_the_same_names_and_no_random_number_is_drawn():
    plain = nn.Sequential(convolution("thin stem"), nn.ReLU()).eval()
    parameters, state = dict(plain.named_parameters()), torch.get_rng_state()
    converted = convert_convolutions(plain)
    assert torch.equal(torch.get_rng_state(), state)
    assert list(converted.state_dict()) == ["0.weight", "0.bias"]
    assert all(parameters[name] is value for name, value in converted.named_parameters())
    assert not converted[0].training
