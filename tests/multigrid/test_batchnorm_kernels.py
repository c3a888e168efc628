"""The Triton kernels of split batch normalisation, interpreted and compiled without a GPU."""

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget

from multigrid.batchnorm import GroupedBatchNorm3d
from multigrid.batchnorm import triton as on_gpu

pytestmark = pytest.mark.slow

WORKER = Path(__file__).with_name("batchnorm_kernels_worker.py")

# (N, C, T, H, W), groups, type, for the worker's small tiles: rows that fill no tile; channels of
# several blocks, one with a rest; four tiles at once, several chunks and a rest, with more partial
# results of a group than are combined at a time.
SHAPES = [
    ((4, 24, 1, 3, 3), 2, torch.float64),
    ((4, 6, 1, 33, 20), 2, torch.float64),
    ((2, 16, 1, 9, 9), 2, torch.bfloat16),
    ((2, 12, 1, 7, 5), 2, torch.float16),
]
TOLERANCE = {  # of what is of x's type, and of the statistics
    torch.float64: (1e-12, 1e-12),
    torch.float16: (4e-3, 1e-3),
    torch.bfloat16: (3e-2, 1e-3),
}

Case = tuple[GroupedBatchNorm3d, Tensor, Tensor]


def _case(shape: tuple[int, ...], groups: int, dtype: torch.dtype, level: float = 0.0) -> Case:
    generator = torch.Generator().manual_seed(0)
    x, grad = torch.randn(2, *shape, dtype=torch.float64, generator=generator)
    x = (x + level).to(dtype).contiguous(memory_format=torch.channels_last_3d)
    precise = torch.promote_types(dtype, torch.float32)
    norm = GroupedBatchNorm3d(shape[1], dtype=precise)
    torch.nn.init.uniform_(norm.weight, 0.5, 2.0, generator=generator)
    torch.nn.init.uniform_(norm.bias, -1.0, 1.0, generator=generator)
    norm.group_size = shape[0] // groups
    return norm, x, grad.to(dtype)


def _name(shape: tuple[int, ...], groups: int, dtype: torch.dtype) -> str:
    return f"{'x'.join(map(str, shape))}-{groups}-{str(dtype).removeprefix('torch.')}"


CASES = {_name(*of): _case(*of) for of in SHAPES} | {
    "large mean": _case((2, 8, 1, 24, 24), 2, torch.float32, level=1e4),
    "not a number": _case((2, 8, 1, 3, 3), 2, torch.float32, level=float("inf")),
}


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Tensor]]:
    folder = tmp_path_factory.mktemp("kernels")
    torch.save(CASES, folder / "cases.pt")
    command = [sys.executable, str(WORKER), str(folder)]
    subprocess.run(command, check=True, env=os.environ | {"TRITON_INTERPRET": "1"})
    return torch.load(folder / "results.pt")


@pytest.mark.parametrize("of", SHAPES, ids=lambda of: _name(*of))
def test_kernels_agree_with_plain_operations(interpreted, of):
    train = runpy.run_path(str(WORKER))["train"]
    name, dtype = _name(*of), of[2]
    found, expected = interpreted[name], train(*deepcopy(CASES[name]))
    assert found.keys() == expected.keys()
    for part, value in found.items():
        assert value.dtype == expected[part].dtype
        if part in ("output", "gradient of input"):
            assert value.is_contiguous(memory_format=torch.channels_last_3d)
        tolerance = TOLERANCE[dtype][0 if value.dtype == dtype else 1]
        torch.testing.assert_close(value, expected[part], atol=tolerance, rtol=tolerance)


def test_a_large_mean_does_not_drown_the_variance(interpreted):
    # In single precision 1e4 is known to 0.001 and its square to 8: E[x²] - E[x]² would be noise.
    norm, x, _ = CASES["large mean"]
    groups = x.double().view(-1, 2, *x.shape[1:])
    variance = groups.var((0, 3, 4, 5), correction=1).mean(0)
    found = (interpreted["large mean"]["running_var"].double() - 0.9) / 0.1
    torch.testing.assert_close(found, variance, atol=0, rtol=1e-4)
    values = interpreted["large mean"]["output"].double().sub(norm.bias.view(-1, 1, 1, 1))
    level = values.view(groups.shape).mean((0, 3, 4, 5))
    assert level.abs().max() < 2e-3  # 1e4 known to single precision, over a deviation of 1


def test_what_is_not_a_number_shows(interpreted):
    results = interpreted["not a number"]
    for part in ("output", "gradient of input", "running_mean", "running_var"):
        assert results[part].isnan().all(), part


class _Driver:
    """Enough of a GPU to compile for: what its architecture is."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would be launched on a GPU is compiled for it instead, and put into this list."""
    found: list[Any] = []

    def launch(kernel: triton.JITFunction, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *args, **options: found.append(kernel.warmup(*args, grid=grid, **options))

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(type(triton.runtime.driver), "active", _Driver())
    monkeypatch.setattr(triton.JITFunction, "__getitem__", launch)
    return found


def test_kernels_compile_once_and_load_16_bytes_at_a_time(compiled):
    for shape, groups in (((4, 64, 2, 9, 9), 2), ((12, 64, 1, 4, 4), 3)):
        norm, x, grad = _case(shape, groups, torch.bfloat16)
        grad = grad.contiguous(memory_format=torch.channels_last_3d)
        _, mean, invstd, _ = on_gpu.forward(x, norm.weight, norm.bias, groups, 1e-5)
        on_gpu.backward(grad, x, norm.weight, mean, invstd)
    assert len(compiled) == 12
    assert len({kernel.hash for kernel in compiled}) == 6  # none anew for another shape
    for kernel in compiled:
        widths = set(re.findall(r"ld\.global\.(?:v\d\.)?b\d+", kernel.asm["ptx"]))
        assert "ld.global.v4.b32" in widths, kernel.name
        assert not widths & {"ld.global.b16", "ld.global.b8"}, kernel.name
