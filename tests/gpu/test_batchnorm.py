"""Split batch normalisation on a GPU: the Triton kernels against the plain operations."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from multigrid.batchnorm import GroupedBatchNorm3d, plain, split

pytestmark = pytest.mark.gpu

CHANNELS_LAST = torch.channels_last_3d

# (N, C, T, H, W): layers of SlowFast's pathways, odd channels and sizes, one position only.
SHAPES = [
    (16, 64, 2, 79, 79),
    (16, 8, 8, 79, 79),
    (16, 256, 4, 40, 40),
    (64, 2048, 2, 5, 5),
    (12, 80, 3, 7, 9),
    (8, 13, 5, 11, 3),
    (24, 512, 1, 1, 2),
]
TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-4, torch.bfloat16: 3e-2}


@pytest.fixture(autouse=True)
def _kernels_run() -> None:
    """No test passes because the plain operations stood in for the kernels."""
    device = torch.device("cuda", torch.cuda.current_device())
    assert split._on_gpu(device).__name__ == "multigrid.batchnorm.triton"


def _case(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[GroupedBatchNorm3d, Tensor, Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    options = {"device": "cuda", "dtype": dtype, "generator": generator}
    x, grad = (torch.randn(shape, **options).to(memory_format=CHANNELS_LAST) for _ in range(2))
    norm = GroupedBatchNorm3d(shape[1], dtype=torch.promote_types(dtype, torch.float32)).cuda()
    for parameter in norm.parameters():
        nn.init.uniform_(parameter, 0.5, 2.0)
    norm.group_size = shape[0] // 4
    return norm, x.mul_(3).add_(2), grad


def _train(module: nn.Module, x: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    """The output and the gradients of x and of the parameters."""
    x = x.detach().requires_grad_()
    output = module(x)
    return (output.detach(), *torch.autograd.grad(output, (x, *module.parameters()), grad))


def _assert_close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    # Sums over many values are as exact as their own size allows.
    tolerance = TOLERANCE[dtype]
    scale = expected.abs().max().clamp(min=1).item()
    torch.testing.assert_close(found, expected, atol=tolerance * scale, rtol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
def test_kernels_agree_with_plain_operations(shape, dtype, monkeypatch):
    norm, x, grad = _case(shape, dtype)
    other = deepcopy(norm)
    found = _train(norm, x, grad)
    with monkeypatch.context() as patch:
        patch.setattr(split, "_implementation", lambda x: plain)
        expected = _train(other, x, grad)
    for a, b in zip(found, expected, strict=True):
        assert a.stride() == b.stride()
        _assert_close(a, b, dtype)
    for name, value in other.state_dict().items():
        torch.testing.assert_close(norm.state_dict()[name], value, atol=1e-5, rtol=1e-5)


def test_more_than_two_thousand_million_values():
    if torch.cuda.mem_get_info()[0] < 20e9:
        pytest.skip("needs 20 GB of free memory")
    x = torch.randn(36, 64, 8, 348, 348, device="cuda", dtype=torch.bfloat16)
    x = x.to(memory_format=CHANNELS_LAST)
    assert x.numel() > 2**31
    norm = GroupedBatchNorm3d(64, affine=False, device="cuda")
    norm.group_size = 6
    with torch.no_grad():
        last = norm(x)[-1].float()
    # The last clip's group by itself, which 32-bit offsets do not leave.
    expected = nn.functional.batch_norm(x[5::6], None, None, training=True)[-1].float()
    torch.testing.assert_close(last, expected, atol=3e-2, rtol=3e-2)


def test_the_same_input_gives_the_same_bits():
    norm, x, grad = _case(SHAPES[0], torch.bfloat16)
    first, second = _train(norm, x, grad), _train(norm, x, grad)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_memory_holds_no_copy():
    norm, x, grad = _case((32, 64, 4, 79, 79), torch.bfloat16)
    _train(norm, x, grad)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    results = _train(norm, x, grad)
    size = x.numel() * x.element_size()
    assert len(results) == 4  # of x's size: the output and the gradient, no more
    assert torch.cuda.max_memory_allocated() - before < 2.2 * size


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, CHANNELS_LAST])
def test_compiled_agrees(memory_format):
    norm, x, grad = _case((8, 16, 2, 9, 9), torch.float32)
    x = x.contiguous(memory_format=memory_format)
    other = deepcopy(norm)
    compiled = torch.compile(other, fullgraph=True, dynamic=False)
    for a, b in zip(_train(compiled, x, grad), _train(norm, x, grad), strict=True):
        _assert_close(a, b, torch.float32)
    torch.testing.assert_close(other.running_var, norm.running_var)
    torch.compiler.reset()
