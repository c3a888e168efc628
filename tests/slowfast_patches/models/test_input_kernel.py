"""The GPU's input kernel without a GPU: compiled for one, and interpreted on the CPU; and what
happens where it cannot be."""

import importlib.util
import sys
from types import ModuleType

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from slowfast_patches.models import input_kernel
from slowfast_patches.models.inputs import InputTransform, _working_kernel

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
CPU = torch.device("cpu")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "rounding", "last", "pack"),
    [("fp32", "div.rn.f32", False, True), ("bf16", "cvt.rn.bf16", True, False)],
)
def test_it_compiles_for_a_gpu(dtype, rounding, last, pack, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    pointers = {"clips": "*u8", "flips": "*u8", "mean": "*fp32", "std": "*fp32"}
    pointers |= {"places": "*i32", "every": f"*{dtype}", "slow": f"*{dtype}"}
    numbers = dict.fromkeys(("frames", "slow_frames", "pixels", "width"), "i32")
    fixed = {"PACK": pack, "REVERSE": True, "CHANNELS_LAST": last, "BLOCK": 512}
    fixed |= {} if pack else {"places": None}
    signature = pointers | numbers | dict.fromkeys(fixed, "constexpr")
    source = ASTSource(fn=input_kernel._normalise, signature=signature, constexprs=fixed)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm
    assert compiled["cubin"]
    assert rounding in compiled["ptx"]


@pytest.fixture(scope="module")
def interpreted() -> ModuleType:
    """The module once more, its kernel interpreted."""
    spec = importlib.util.spec_from_file_location("interpreted_kernel", input_kernel.__file__)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton.knobs.runtime, "interpret", True)
        spec.loader.exec_module(module)
    module._BLOCK = 32  # a frame of 5 × 7 is two programs, the second not full
    return module


@pytest.mark.parametrize(
    ("shape", "alpha", "dtype", "last", "reverse"),
    [
        ((2, 4, 5, 7), 2, F32, False, False),
        ((2, 4, 5, 7), 2, BF16, True, False),
        ((2, 2, 7, 5), None, BF16, False, True),
        ((2, 2, 7, 5), None, F16, True, True),
        ((1, 8, 2, 3), 8, F32, True, True),
        ((2, 1, 1, 1), 1, F32, True, False),
    ],
)
def test_it_gives_what_the_plain_path_gives(interpreted, shape, alpha, dtype, last, reverse):
    """To the last bit, and so are the strides; of clips (N, T, H, W), flipped by turns."""
    clips = torch.randint(0, 256, (*shape, 3), dtype=torch.uint8)
    flips = torch.arange(len(clips)) % 2 == 0
    mean, std = torch.tensor([0.45, 0.1, 0.6]), torch.tensor([0.225, 0.3, 0.2])
    exact = F32 if dtype == BF16 else dtype
    plain = InputTransform(mean, std, alpha, reverse, CPU, exact, last)
    form = plain._form(clips.shape[1])._replace(dtype=dtype)
    made = interpreted.normalise(clips, flips, mean, std, form)
    for ours, wanted in zip(made, plain(clips, flips), strict=True):
        assert ours.stride() == wanted.stride()
        if dtype == BF16:  # cut off by the interpreter, rounded by a GPU
            wanted = (wanted.view(torch.int32) & -(1 << 16)).view(F32)
        torch.testing.assert_close(ours, wanted.to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("missing", [True, False], ids=["no Triton", "no GPU for it"])
def test_without_it_there_is_a_warning_and_the_plain_path(missing, monkeypatch, caplog):
    """`_on_gpu` on the CPU, for which Triton has no compiler."""
    _working_kernel.cache_clear()
    if missing:
        monkeypatch.setitem(sys.modules, "triton", None)
        monkeypatch.delitem(sys.modules, "slowfast_patches.models.input_kernel", raising=False)
    clips = torch.randint(0, 256, (3, 8, 6, 6, 3), dtype=torch.uint8)
    flips = torch.tensor([True, False, True])
    to_model = InputTransform(torch.zeros(3), torch.ones(3), 4, False, CPU)
    for _ in range(2):
        made = to_model._on_gpu(clips, flips, to_model._form(8))
        for ours, wanted in zip(made, to_model(clips, flips), strict=True):
            assert torch.equal(ours, wanted)
    (said,) = caplog.messages
    assert "in several passes on the GPU, not in one: Triton" in said
    _working_kernel.cache_clear()
