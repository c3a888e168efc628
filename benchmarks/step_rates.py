"""The rate of a device's matrix products, which a step's operations are a share of."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import torch
from step_clock import StepClock
from torch import Tensor

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.launch.device import set_up_device

__all__ = ["matrix_rates"]

_SIDES = {"cuda": 8192, "cpu": 512}
_SECONDS = 0.25

_TYPES = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def matrix_rates(recipe: Recipe, device: torch.device, names: Iterable[str]) -> dict[str, float]:
    """FLOP/s of square matrix products in some precisions, a multiply-add counted as two.

    The matrices are random: of zeros, a GPU that draws less current computes faster.

    Args:
        recipe: any recipe for the device; its TRAIN.TF32 is set as each precision needs it.
        names: of "float32", "tf32", "bfloat16" and "float16".
    """
    rates = dict[str, float]()
    for name in sorted(set(names)):
        set_up_device(recipe.replaced({"TRAIN.TF32": name == "tf32"}))
        rates[name] = _matrix_rate(device, _TYPES[name])
    return rates


def _matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """The median over the products of some time, after as many that are not timed."""
    side = _SIDES[device.type]
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    _product_seconds(a, b)
    count = max(3, int(_SECONDS / _product_seconds(a, b)))
    took = [_product_seconds(a, b) for _ in range(2 * count)]
    return 2 * side**3 / statistics.median(took[count:])


def _product_seconds(a: Tensor, b: Tensor) -> float:
    clock = StepClock(a.device)
    clock.start()
    torch.mm(a, b)
    clock.mark("product")
    if a.is_cuda:
        torch.cuda.synchronize()
    return clock.read().seconds
