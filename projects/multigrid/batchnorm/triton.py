"""Batch normalisation over groups of clips in channels_last_3d, as Triton kernels.

In channels_last_3d, N clips of S = T·H·W positions and C channels are a matrix of N·S rows of C
values, and group g has the rows of the clips g, g + G, g + 2G, ... No view makes of that a tensor
that torch's own kernels take. The kernels here walk the rows as they lie: forward reads the input
twice and writes once, backward reads input and gradient twice and writes once, as many bytes as
torch's batch normalisation. Partial results are combined in float64 and in a fixed order, without
atomics: the same input gives the same bits.

Import this only where there is a GPU: the kernels need triton, which torch's CUDA builds bring.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from math import ceil, gcd
from typing import Any

import torch
from torch import Tensor

from multigrid.batchnorm import kernels

__all__ = ["backward", "check", "forward"]

# A tile has one size whatever the shape, so that nothing is tuned or compiled anew when it changes.
# 256 threads with 8 values each: 16 bytes in half precision, the most that one load takes. Kernels
# take two or four tiles at a time: with 3 or more programs on a multiprocessor, so many loads
# under way are what fills an H100's memory bandwidth.
TILE, WARPS = 2048, 8
# 64 channels of a row are 128 bytes in half precision, a whole cache line.
TILE_CHANNELS = 64
# So many programs are several waves on 132 multiprocessors; but a program takes some fours of
# tiles, so that combining its lanes and writing partial results stay small beside reading.
PROGRAMS = 4096
FOURS = (2, 16)
# Partial results and channels that one program combines at a time, where there are more of a group
# than fit into the second and where not: neither may take long, with few programs or with many.
TALL, WIDE = (256, 8), (32, 64)


@dataclass(frozen=True)
class _Plan:
    """How an input is cut: `rows` of a clip and `tile[1]` channels for each program."""

    clips: int
    groups: int
    positions: int
    channels: int
    tile: tuple[int, int]
    rows: int

    @cached_property
    def chunks(self) -> int:
        """Into how many parts the rows of a clip are cut."""
        return ceil(self.positions / self.rows)

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        # The number of channels as units and their size, which the compiler knows: it then sees
        # that rows begin at multiples of 16 bytes, and loads so many at once.
        unit = gcd(self.channels, 16)
        return self.groups, self.positions, self.rows, self.chunks, self.channels // unit, unit

    def partials(self, like: Tensor) -> tuple[Tensor, ...]:
        """Where the programs put two sums per channel, in the precision of the statistics."""
        shape = (2, self.clips * self.chunks, self.channels)
        dtype = torch.promote_types(like.dtype, torch.float32)
        return torch.empty(shape, dtype=dtype, device=like.device).unbind()

    def over_rows(self, kernel: Any, *tensors: Tensor) -> None:
        """Run a kernel on every chunk of every clip."""
        programs = self.clips * self.chunks * ceil(self.channels / self.tile[1])
        kernel[(programs,)](*tensors, *self._sizes, *self.tile, num_warps=WARPS)

    def over_groups(self, kernel: Any, *tensors: Tensor, **constants: float) -> None:
        """Run a kernel on all partial results of each group."""
        repeats = self.clips // self.groups
        tile = TALL if repeats * self.chunks > WIDE[0] else WIDE
        programs = self.groups * ceil(self.channels / tile[1])
        kernel[(programs,)](*tensors, repeats, *self._sizes, *tile, **constants, num_warps=WARPS)


def _plan(x: Tensor, groups: int) -> _Plan:
    shape = x.shape
    return _plan_of(shape[0], shape[1], shape[2:].numel(), groups)


@cache  # the shapes of a training are few, and a layer has one for hundreds of iterations
def _plan_of(clips: int, channels: int, positions: int, groups: int) -> _Plan:
    width = min(TILE_CHANNELS, 1 << (channels - 1).bit_length())
    height = TILE // width
    fours = clips * ceil(positions / (4 * height)) * ceil(channels / width)
    low, high = FOURS
    rows = 4 * height * min(high, max(low, ceil(fours / PROGRAMS)))
    return _Plan(clips, groups, positions, channels, (height, width), rows)


def check(device: torch.device) -> None:
    """Run the least kernel, so that what stands in the way of others shows in an exception."""
    with torch.cuda.device(device):
        kernels.nothing[(1,)](torch.empty(1, device=device))


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
    plan = _plan(x, groups)
    partials = plan.partials(x)
    mean, invstd, scale, unbiased = partials[0].new_empty(4, groups, x.shape[1]).unbind()
    output = torch.empty_like(x)
    with torch.cuda.device(x.get_device()):
        plan.over_rows(kernels.moments, x, *partials)
        plan.over_groups(
            kernels.combine_moments, *partials, weight, mean, invstd, scale, unbiased, EPS=eps
        )
        plan.over_rows(kernels.normalize, x, output, mean, scale, bias)
    return output, mean, invstd, unbiased


def backward(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, invstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias; `grad` is in channels_last_3d as x is."""
    plan = _plan(x, mean.shape[0])
    partials = plan.partials(x)
    results = partials[0].new_empty(5, *mean.shape)
    sums = results.unbind()
    scale, slope, level, *_ = sums
    grad_x = torch.empty_like(x)
    with torch.cuda.device(x.get_device()):
        plan.over_rows(kernels.gradient_sums, grad, x, mean, *partials)
        plan.over_groups(kernels.combine_gradients, *partials, weight, invstd, *sums)
        plan.over_rows(kernels.input_gradient, grad, x, grad_x, mean, scale, slope, level)
    grad_weight, grad_bias = results[3:].sum(1).unbind()
    return grad_x, grad_weight, grad_bias
