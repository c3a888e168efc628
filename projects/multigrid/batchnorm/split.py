"""Batch normalisation over groups of clips in channels_last_3d, without a copy of the input."""

from __future__ import annotations

import warnings
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from multigrid.batchnorm import plain

__all__ = ["split_batch_norm"]


def split_batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise each group of clips, by Triton kernels on a GPU and by plain torch elsewhere.

    Args:
        x: (N, C, T, H, W) in channels_last_3d; clip n is of group n % `groups`.
        weight, bias: (C,), in float32, or float64 for a float64 input, as the statistics are.

    Returns:
        the output, in channels_last_3d; the groups' means and unbiased variances, both (G, C).
    """
    output, mean, var = _SplitBatchNorm.apply(  # type: ignore[no-untyped-call]
        x, weight, bias, groups, eps
    )
    return output, mean, var


class _SplitBatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        implementation = _implementation(x)
        output, mean, invstd, unbiased = implementation.forward(x, weight, bias, groups, eps)
        ctx.save_for_backward(x, weight, mean, invstd)
        ctx.mark_non_differentiable(mean, unbiased)
        return output, mean, unbiased

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, invstd = ctx.saved_tensors
        # A gradient of another layout is copied once: the layer above has not kept the format.
        grad = grad.contiguous(memory_format=torch.channels_last_3d)
        return *_implementation(x).backward(grad, x, weight, mean, invstd), None, None


def _implementation(x: Tensor) -> ModuleType:
    if x.is_cuda and not torch.compiler.is_compiling():
        return _on_gpu(x.device)
    return plain


@cache
def _on_gpu(device: torch.device) -> ModuleType:
    """The Triton kernels; the plain operations, with a warning, where they do not run."""
    try:
        kernels = import_module("multigrid.batchnorm.triton")
        kernels.check(device)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # no triton, no C compiler, an old card: whatever it is, it is said
        warnings.warn(
            "batch normalisation over groups in channels_last_3d does without its Triton kernels, "
            f"which makes it several times slower: {type(error).__name__}: {error}",
            stacklevel=2,
        )
        return plain
    return kernels
