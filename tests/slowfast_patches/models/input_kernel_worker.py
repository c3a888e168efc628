"""The GPU's input kernel without a GPU: compiled for one, and interpreted on the CPU.

It prints how many kernels were compiled and how many results compared.
"""

import importlib

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from slowfast_patches.models import input_kernel
from slowfast_patches.models.inputs import InputTransform

HOPPER = GPUTarget("cuda", 90, 32)
ROUNDING = {"fp32": "div.rn.f32", "bf16": "cvt.rn.bf16", "fp16": "cvt.rn.f16"}

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
CASES = [
    # (N, T, H, W), alpha, then types, channels_last, reversed channels
    ((2, 4, 5, 7), 2, [(F32, False, False), (F32, True, True), (BF16, True, False)]),
    ((2, 2, 7, 5), None, [(F32, True, False), (BF16, False, True), (F16, True, True)]),
    ((2, 8, 4, 4), 4, [(F16, False, False), (F32, True, False)]),
    ((1, 8, 2, 3), 8, [(BF16, True, True)]),
    ((1, 5, 3, 2), 2, [(F32, False, True)]),
    ((2, 1, 1, 1), 1, [(F32, True, False)]),
]


def compile_for_a_gpu() -> int:
    made = 0
    for dtype, last, pack in (("fp32", False, True), ("bf16", True, True), ("fp16", True, False)):
        pointers = {"clips": "*u8", "flips": "*u8", "mean": "*fp32", "std": "*fp32"}
        pointers |= {"places": "*i32", "every": f"*{dtype}", "slow": f"*{dtype}"}
        numbers = dict.fromkeys(("frames", "slow_frames", "pixels", "width"), "i32")
        fixed = {"PACK": pack, "REVERSE": True, "CHANNELS_LAST": last, "BLOCK": 512}
        if not pack:
            fixed["places"] = None
        signature = pointers | numbers | dict.fromkeys(fixed, "constexpr")
        source = ASTSource(fn=input_kernel._normalise, signature=signature, constexprs=fixed)
        compiled = triton.compile(source, target=HOPPER).asm
        assert compiled["cubin"]
        assert ROUNDING[dtype] in compiled["ptx"]
        made += 1
    return made


def compare_all() -> int:
    """Results are the same to the last bit, and so are their strides."""
    triton.knobs.runtime.interpret = True
    importlib.reload(input_kernel)
    input_kernel._BLOCK = 32  # a frame of 5 × 7 is two programs, the second not full
    generator, compared = torch.Generator().manual_seed(0), 0
    for shape, alpha, ways in CASES:
        clips = torch.randint(0, 256, (*shape, 3), generator=generator, dtype=torch.uint8)
        for dtype, last, reverse in ways:
            compare(clips, alpha, dtype, last, reverse)
            compared += 1
    return compared


def compare(
    clips: torch.Tensor, alpha: int | None, dtype: torch.dtype, last: bool, reverse: bool
) -> None:
    """The clips are flipped by turns."""
    flips = torch.arange(len(clips)) % 2 == 0
    mean, std = torch.tensor([0.45, 0.1, 0.6]), torch.tensor([0.225, 0.3, 0.2])
    exact = F32 if dtype == BF16 else dtype
    plain = InputTransform(mean, std, alpha, reverse, torch.device("cpu"), exact, last)
    form = plain._form(clips.shape[1])._replace(dtype=dtype)
    made = input_kernel.normalise(clips, flips, mean, std, form)
    for ours, wanted in zip(made, plain(clips, flips), strict=True):
        assert ours.stride() == wanted.stride(), (ours.stride(), wanted.stride())
        if dtype == BF16:  # cut off by the interpreter, rounded by a GPU
            wanted = (wanted.view(torch.int32) & -(1 << 16)).view(F32)
        torch.testing.assert_close(ours, wanted.to(dtype), rtol=0, atol=0)


if __name__ == "__main__":
    print(compile_for_a_gpu(), compare_all())
