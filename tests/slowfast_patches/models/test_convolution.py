"""`PlanarConv3d` has the values and gradients of `nn.Conv3d`, and replaces the right kernels."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from slowfast_patches.models.layers.conv_and_pool import PlanarConv3d, convert_convolutions

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


class Kernels(TorchDispatchMode):
    """Mode that lists which of torch's kernels compute convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.used = list[str]()
        self.sizes = list[tuple[int, ...]]()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name == "convolution":
            self.used.append(f"{args[1].ndim - 2}-D convolution")
            self.sizes.append(tuple(args[1].shape[2:]))
        elif name == "_slow_conv2d_forward":
            self.used.append("a matrix product per clip")
        elif name in ("addmm", "mm", "bmm"):
            self.used.append("one matrix product")
        return func(*args, **(kwargs or {}))


def kernels_of(module: nn.Conv3d, x: Tensor) -> list[str]:
    with torch.no_grad(), Kernels() as kernels:
        module(x)
    return kernels.used


PLANES, VOLUMES = "2-D convolution", "3-D convolution"
PER_CLIP, TOGETHER = "a matrix product per clip", "one matrix product"


@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "size", "used"),
    [
        # 1 × 1 × 1, by the number of channels, and of positions per clip.
        ((6, 512), (1, 1, 1), (1, 1, 1), (2, 3, 3), [PER_CLIP]),
        ((512, 6), (1, 1, 1), (1, 1, 1), (2, 3, 3), [PER_CLIP]),
        ((6, 513), (1, 1, 1), (1, 1, 1), (2, 3, 3), [PLANES]),
        ((513, 6), (1, 1, 1), (1, 1, 1), (2, 3, 3), [PLANES]),
        ((6, 513), (1, 1, 1), (1, 1, 1), (2, 2, 2), [TOGETHER]),
        ((6, 9), (1, 1, 1), (1, 1, 1), (1, 3, 3), [PER_CLIP]),
        ((6, 9), (1, 1, 1), (2, 2, 2), (4, 4, 4), [TOGETHER]),
        # T × 1 × 1, by the number of output channels.
        ((6, 4), (3, 1, 1), (1, 1, 1), (4, 3, 3), [PER_CLIP]),
        ((6, 5), (3, 1, 1), (1, 1, 1), (4, 3, 3), [PLANES]),
        ((6, 4), (3, 1, 1), (1, 1, 1), (4, 1, 1), [PER_CLIP]),
        # T × k × k, where taps are stacked to up to 16 channels.
        ((3, 15), (3, 3, 3), (1, 1, 1), (4, 5, 5), [PLANES] * 3),
        ((3, 8), (5, 3, 3), (1, 1, 1), (4, 5, 5), [PLANES] * 3),
        ((3, 2), (5, 7, 7), (1, 2, 2), (4, 9, 9), [PLANES]),
        ((3, 16), (3, 3, 3), (1, 1, 1), (4, 5, 5), [VOLUMES]),
        ((3, 2), (3, 3, 3), (2, 1, 1), (4, 5, 5), [VOLUMES]),
        ((6, 9), (1, 3, 3), (1, 1, 1), (4, 5, 5), [VOLUMES]),
    ],
)
def test_each_kernel_is_computed_in_the_way_that_is_fastest(channels, kernel, stride, size, used):
    padding = tuple(side // 2 for side in kernel)
    planar = convert_convolutions(nn.Conv3d(*channels, kernel, stride, padding))
    assert kernels_of(planar, torch.randn(2, channels[0], *size)) == used


@pytest.mark.parametrize(
    ("size", "kernel"),
    [
        ((1, 9, 9), (1, 7, 7)),
        ((2, 9, 9), (3, 7, 7)),
        ((9, 2, 9), (5, 3, 7)),
        ((9, 9, 3), (5, 7, 5)),
        ((3, 4, 4), (5, 7, 7)),
    ],
)
def test_weights_that_meet_only_padding_are_left_out(size, kernel):
    planar = convert_convolutions(nn.Conv3d(3, 16, (5, 7, 7), padding=(2, 3, 3)))
    with torch.no_grad(), Kernels() as kernels:
        planar(torch.randn(1, 3, *size))
    assert kernels.sizes == [kernel]


def test_half_precision_and_channels_last_use_no_kernel_that_lacks_them():
    planar = convert_convolutions(nn.Conv3d(6, 4, (3, 1, 1), padding=(1, 0, 0)))
    x = torch.randn(2, 6, 4, 3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert kernels_of(planar, x) == [PLANES]
    last = x.contiguous(memory_format=torch.channels_last_3d)
    assert kernels_of(planar, last) == [VOLUMES]
    assert kernels_of(planar.to(torch.bfloat16), x.to(torch.bfloat16)) == [PLANES]


@pytest.mark.parametrize(
    "options",
    [
        {"groups": 3},
        {"dilation": (2, 1, 1)},
        {"padding": 0},
        {"padding": (1, 1, 0)},
        {"padding": (1, 0, 0), "padding_mode": "replicate"},
        {"kernel_size": (2, 1, 1), "padding": (1, 0, 0)},
        {"kernel_size": (3, 2, 1), "padding": (1, 1, 0)},
    ],
)
def test_other_convolutions_stay_torchs_own(options):
    how = {"kernel_size": (3, 1, 1), "padding": (1, 0, 0)} | options
    torch.manual_seed(0)
    plain = nn.Conv3d(6, 9, **how)
    x = torch.randn(2, 6, 8, 9, 8)
    assert torch.equal(convert_convolutions(copy.deepcopy(plain))(x), plain(x))


def test_a_clip_without_a_batch_is_computed_by_torch():
    plain = convolution("3×1×1")
    (x,) = clips(plain, 8, 9, 8)[:1]
    assert torch.equal(convert_convolutions(copy.deepcopy(plain))(x), plain(x))


def test_all_convolutions_within_a_model_are_replaced_but_not_those_of_a_subclass():
    class Own(nn.Conv3d):
        """A convolution that may compute something else."""

    model = nn.Sequential(nn.Sequential(convolution("3×1×1")), Own(9, 2, 1))
    converted = convert_convolutions(model)
    assert converted is model
    assert [type(layer) for layer in (model[0][0], model[1])] == [PlanarConv3d, Own]


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
