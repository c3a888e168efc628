"""Batch normalisation over groups of clips in channels_last_3d, with torch's own operations.

What runs where the kernels of `kernels` cannot: on the CPU, without triton, and under
torch.compile, which fuses plain formulas itself. x is never copied into another layout.

On the CPU torch's own kernel takes the statistics of one clip after another, since the ones of a
single clip are in a layout that it knows: `torch.var_mean` over the groups at once is about ten
times slower there. Elsewhere it is one call whatever the number of clips.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["backward", "forward"]


def forward(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Normalise each group of clips.

    Args:
        x: (N, C, T, H, W) in channels_last_3d; clip n is of group n % `groups`.
        weight, bias: (C,), in float32, or float64 for a float64 input, as all statistics are.

    Returns:
        the output, of x's type and layout; and of each group (G, C) the mean, 1/sqrt(variance +
        eps) and the unbiased variance.
    """
    var, mean = _var_mean(x, groups)
    count = x.numel() // (groups * x.shape[1])
    invstd = (var + eps).rsqrt()
    scale = weight * invstd
    output = _linear(bias - mean * scale, (x, scale))
    return output, mean, invstd, var * (count / (count - 1))


def backward(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, invstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias; `grad` is in channels_last_3d as x is."""
    along, across = _gradient_sums(grad, x, mean, invstd)
    count = x.numel() // mean.numel()
    scale = weight * invstd
    # scale · (grad - across / count - normalised x · along / count), with the rest linear in x
    slope = -scale * invstd * along / count
    grad_x = _linear(-scale * across / count - slope * mean, (x, slope), (grad, scale))
    return grad_x, along.sum(0), across.sum(0)


def _by_clip(x: Tensor) -> bool:
    """Whether clips are taken one after another."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def _var_mean(x: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Biased variance and mean of each group and channel, (G, C)."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    if not _by_clip(x):
        return torch.var_mean(_grouped(x, groups).to(dtype), (0, 3, 4, 5), correction=0)
    # The running statistics only say in which precision the clips' come.
    running = torch.zeros(2, x.shape[1], dtype=dtype)
    clips = torch.split(x, 1)
    stats = [torch.batch_norm_update_stats(clip, running[0], running[1], 0.0) for clip in clips]
    means, variances = (_grouped(torch.stack(s), groups) for s in zip(*stats, strict=True))
    between, mean = torch.var_mean(means, 0, correction=0)
    return variances.mean(0) + between, mean


def _gradient_sums(grad: Tensor, x: Tensor, mean: Tensor, invstd: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of grad · normalised x and of grad, (G, C) each."""
    groups = len(mean)
    if not _by_clip(x):
        slopes = _grouped(grad, groups).to(mean.dtype)
        normalized = (_grouped(x, groups) - _wide(mean)) * _wide(invstd)
        return (slopes * normalized).sum((0, 3, 4, 5)), slopes.sum((0, 3, 4, 5))
    repeats = len(x) // groups
    ofs = zip(
        torch.split(grad, 1), torch.split(x, 1), [*mean] * repeats, [*invstd] * repeats, strict=True
    )
    sums = [_clip_sums(*of) for of in ofs]
    along, across = (_grouped(torch.stack(s), groups).sum(0) for s in zip(*sums, strict=True))
    return along, across


def _clip_sums(grad: Tensor, clip: Tensor, mean: Tensor, invstd: Tensor) -> tuple[Tensor, Tensor]:
    wanted = [False, True, True]
    _, along, across = torch.ops.aten.native_batch_norm_backward(
        grad, clip, torch.ones_like(mean), None, None, mean, invstd, True, 0.0, wanted
    )
    return along, across


def _linear(level: Tensor, *terms: tuple[Tensor, Tensor]) -> Tensor:
    """level + Σ tensor · factor: (N, C, T, H, W) in the first tensor's type and layout.

    `level` and the factors are (G, C).
    """
    x = terms[0][0]
    if x.dtype != level.dtype and _by_clip(x):
        return _linear_by_clip(level, *terms)
    # The loops of an addition run over a row of few channels too slowly, over several faster.
    width, repeats = x.shape[4] if x.shape[1] < 16 else 1, len(x) // len(level)
    # Repeated for the clips; of clips seen as groups the result would be a view, which an
    # operation in place may not follow.
    result = _wide(level.repeat(repeats, 1), width)
    for i, (tensor, factor) in enumerate(terms):
        add = torch.addcmul if i == 0 else Tensor.addcmul_
        result = add(result, tensor, _wide(factor.repeat(repeats, 1), width))
    return result.to(x.dtype)


def _linear_by_clip(level: Tensor, *terms: tuple[Tensor, Tensor]) -> Tensor:
    """The same in half precision: additions of both precisions are slow on the CPU.

    Batch normalisation with given statistics, 0 and 1, is not. Each term is rounded.
    """
    zeros, ones = torch.zeros_like(level[0]), torch.ones_like(level[0])
    output = torch.empty_like(terms[0][0])
    for n, clip in enumerate(torch.split(output, 1)):
        g = n % len(level)
        for i, (tensor, factor) in enumerate(terms):
            shift = level[g] if i == 0 else zeros
            term = F.batch_norm(tensor[n : n + 1], zeros, ones, factor[g], shift, eps=0.0)
            clip.copy_(term) if i == 0 else clip.add_(term)
    return output


def _grouped(x: Tensor, groups: int) -> Tensor:
    """(N, C, T, H, W) as (k, G, C, T, H, W)."""
    return x.view(-1, groups, *x.shape[1:])


def _wide(values: Tensor, width: int = 1) -> Tensor:
    """(..., C) as (..., C, 1, 1, width), channels last."""
    return values[..., None, :].repeat_interleave(width, -2).mT[..., None, None, :]
