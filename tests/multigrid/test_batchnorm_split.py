"""Split batch normalisation in both memory formats: no copies, agreement, compiling."""

import sys
import warnings
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import profile

from multigrid.batchnorm import GroupedBatchNorm3d, plain, split

FORMATS = [torch.contiguous_format, torch.channels_last_3d]
CHANNELS_LAST = torch.channels_last_3d
GROUPS = 3


def _clips(
    *shape: int,
    dtype: torch.dtype = torch.float64,
    memory_format: torch.memory_format = CHANNELS_LAST,
    seed: int = 0,
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64) * 3 + 2
    return x.to(dtype).contiguous(memory_format=memory_format)


def _norm(channels: int, k: int, dtype: torch.dtype = torch.float64) -> GroupedBatchNorm3d:
    norm = GroupedBatchNorm3d(channels, dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    for parameter in norm.parameters():
        nn.init.uniform_(parameter, 0.5, 2.0, generator=generator)
    norm.group_size = k
    return norm


class _EachGroup(nn.Module):
    """The specification: nn.BatchNorm3d over every third clip, one group after another."""

    def __init__(self, norm: nn.BatchNorm3d) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        output = torch.empty_like(x)
        for group in range(GROUPS):
            output[group::GROUPS] = self.norm(x[group::GROUPS])
        return output


def _train(module: nn.Module, x: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    """The output and the gradients of x and of the parameters."""
    x = x.detach().requires_grad_()
    output = module(x)
    return (output, *torch.autograd.grad(output, (x, *module.parameters()), grad))


@pytest.fixture(params=[True, False], ids=["clip by clip", "at once"])
def by_clip(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both plain forms: the second is for compilers, and for GPUs without Triton."""
    monkeypatch.setattr(plain, "_by_clip", lambda x: request.param)
    return request.param


@pytest.mark.usefixtures("by_clip")
@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("shape", [(6, 4, 2, 5, 7), (6, 1, 3, 2, 2), (3, 5, 1, 3, 1)])
def test_agrees_with_batchnorm_of_each_group(shape, memory_format):
    x = _clips(*shape, memory_format=memory_format)
    grad = _clips(*shape, memory_format=memory_format, seed=2)
    ours = _norm(shape[1], shape[0] // GROUPS)
    plain = deepcopy(ours)
    plain.group_size = None
    results = _train(ours, x, grad)
    for a, b in zip(results, _train(_EachGroup(plain), x, grad), strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


@pytest.mark.usefixtures("by_clip")
def test_running_statistics_by_hand():
    # Channel 0: groups (1, 3, 1, 3) and (10, 30, 10, 30), means 2 and 20, unbiased variances 4/3
    # and 400/3. Channel 1 is 5 everywhere.
    x = torch.full((4, 2, 1, 1, 2), 5.0, dtype=torch.float64)
    x[:, 0, 0, 0] = torch.tensor([[1.0, 3.0], [10.0, 30.0], [1.0, 3.0], [10.0, 30.0]])
    norm = GroupedBatchNorm3d(2, momentum=0.5, dtype=torch.float64)
    norm.group_size = 2
    norm(x.contiguous(memory_format=CHANNELS_LAST))
    assert norm.running_mean.tolist() == pytest.approx([5.5, 2.5])
    assert norm.running_var.tolist() == pytest.approx([0.5 + 0.25 * 404 / 3, 0.5])


@pytest.mark.usefixtures("by_clip")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("memory_format", FORMATS)
def test_the_memory_format_is_kept(dtype, memory_format):
    x = _clips(6, 4, 2, 5, 5, dtype=dtype, memory_format=memory_format)
    norm = _norm(4, 2, torch.promote_types(dtype, torch.float32))
    output, grad_x, *_ = _train(norm, x, torch.randn_like(x))
    for result in (output, grad_x):
        assert result.dtype == dtype
        assert result.stride() == x.stride()


@pytest.mark.usefixtures("by_clip")
@pytest.mark.usefixtures("by_clip")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("memory_format", FORMATS)
def test_an_operation_in_place_may_follow(dtype, memory_format):
    """As the host's ReLU does."""
    norm, x = _norm(4, 2), _clips(6, 4, 2, 5, 7, dtype=dtype, memory_format=memory_format)
    grad = _clips(*x.shape, dtype=dtype, memory_format=memory_format, seed=2)
    expected = _train(nn.Sequential(norm, nn.ReLU()), x, grad)
    found = _train(nn.Sequential(norm, nn.ReLU(inplace=True)), x, grad)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("grad", [torch.ones(()).double(), torch.linspace(0, 1, 35).double()])
def test_a_gradient_may_have_any_layout(grad):
    x = _clips(6, 4, 2, 5, 7)
    grad = grad.view(-1, 5, 7).expand(x.shape) if grad.numel() > 1 else grad.expand(x.shape)
    norm = _norm(4, 2)
    packed = _train(norm, x, grad.contiguous(memory_format=CHANNELS_LAST))
    for layout in (grad, grad.contiguous()):
        for a, b in zip(_train(norm, x, layout), packed, strict=True):
            assert torch.equal(a, b)
            assert a.stride() == b.stride()


def _copies(module: nn.Module, x: Tensor, grad: Tensor) -> int:
    """How many times something of x's size is copied in training."""
    with profile(record_shapes=True) as recorded:
        _train(module, x, grad)
    found = [event for event in recorded.events() if event.name == "aten::copy_"]
    return sum(_numel(event.input_shapes[0]) >= x.numel() for event in found)


def _numel(shape: list[int]) -> int:
    return torch.Size(shape).numel()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("k", [2, 6])
def test_nothing_is_copied(dtype, memory_format, k):
    x = _clips(6, 4, 2, 5, 7, dtype=dtype, memory_format=memory_format)
    assert _copies(_norm(4, k, torch.float32), x, torch.randn_like(x)) == 0


def test_a_gradient_of_another_layout_is_copied_once():
    x = _clips(6, 4, 2, 5, 7, dtype=torch.float32)
    assert _copies(_norm(4, 2, torch.float32), x, torch.ones(x.shape)) == 1


@pytest.mark.parametrize("memory_format", FORMATS)
def test_compiles_into_one_graph(memory_format):
    x, grad = (_clips(6, 4, 2, 5, 7, memory_format=memory_format, seed=s) for s in (0, 2))
    eager, norm = _norm(4, 2), _norm(4, 2)
    compiled = torch.compile(norm, fullgraph=True, backend="aot_eager", dynamic=False)
    for _ in range(2):
        found, expected = _train(compiled, x, grad), _train(eager, x, grad)
    for a, b in zip(found, expected, strict=True):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(norm.state_dict()[name], value)
    torch.compiler.reset()


def test_a_gpu_without_triton_is_told_once(monkeypatch):
    monkeypatch.setitem(sys.modules, "multigrid.batchnorm.triton", None)
    split._on_gpu.cache_clear()
    device = torch.device("cuda", 7)
    with pytest.warns(UserWarning, match="without its Triton kernels.*batchnorm.triton"):
        assert split._on_gpu(device) is plain
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert split._on_gpu(device) is plain
    split._on_gpu.cache_clear()
