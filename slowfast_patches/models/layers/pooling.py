"""Pooling that is fast and deterministic on GPUs, in both memory formats.

torch's 3-D pooling kernels are slow on a GPU, support only one memory format, and sum gradients in
an order that changes from run to run. Instead, this module computes spatial pooling and temporal
pooling of (N, C, T, H, W) by 2-D pooling of a view of the input.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.utils import _triple

from slowfast_patches.models.layers.replace import replace_modules


class TrainingGlobalPool3d(nn.AvgPool3d):
    """Average pooling over the whole input in training and over a fixed window in evaluation.

    In PySlowFast, the pooling window of a head is fixed by the crop size in the config. In training
    at other shapes, the average must be taken over all of T, H and W. In tests on larger crops, the
    fixed window slides over the input, as in PySlowFast.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        mean: Tensor = _Mean.apply(x, (2, 3, 4))  # type: ignore[no-untyped-call]
        return mean


class MeanOverFrames(nn.Module):
    """Mean over any number of frames: (N, C, T, H, W) to (N, C, 1, H, W).

    The corresponding layer of PySlowFast only accepts the number of frames in the config.
    """

    def forward(self, x: Tensor) -> Tensor:
        mean: Tensor = _Mean.apply(x, (2,))  # type: ignore[no-untyped-call]
        return mean


class _Mean(torch.autograd.Function):
    """Mean over some axes whose backward pass returns a gradient in the memory format of the input.

    Without this class, autograd would return an expanded view of one value. If H and W are 1, the
    preceding layers could then produce gradients whose strides match neither memory format. On a
    CPU, the batch normalisation of torch 2.13 computes wrong results from such gradients.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        last = x.is_contiguous(memory_format=torch.channels_last_3d) and not x.is_contiguous()
        ctx.memory_format = torch.channels_last_3d if last else torch.contiguous_format
        ctx.shape = x.shape
        mean = x.mean(axes, keepdim=True)
        ctx.count = x.numel() // mean.numel()
        return mean

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        grad = gradients[0]
        shared = torch.empty(
            ctx.shape, dtype=grad.dtype, device=grad.device, memory_format=ctx.memory_format
        )
        return torch.div(grad.expand(ctx.shape), ctx.count, out=shared), None


class SpatialMaxPool3d(nn.MaxPool2d):
    """Max pooling of the frames of (N, C, T, H, W), in the memory format of the input."""

    def forward(self, input: Tensor) -> Tensor:
        clips, channels, frames = input.shape[:3]
        if input.is_contiguous() or not input.is_contiguous(memory_format=torch.channels_last_3d):
            planes = super().forward(input.flatten(1, 2))
            return torch.unflatten(planes, 1, (channels, frames))
        by_frame = input.transpose(1, 2).flatten(0, 1)  # (N·T, C, H, W), channels_last
        return torch.unflatten(super().forward(by_frame), 0, (clips, frames)).transpose(1, 2)


class TemporalMaxPool3d(nn.MaxPool2d):
    """Max pooling of (N, C, T, H, W) over time: 2-D pooling of planes of T × (H·W)."""

    def forward(self, input: Tensor) -> Tensor:
        return torch.unflatten(super().forward(input.flatten(3)), 3, input.shape[3:])


def convert_pools(model: nn.Module) -> nn.Module:
    """Replace every `nn.MaxPool3d` with a window of (1, k, k) or (k, 1, 1) (see `replace_modules`).

    Values and gradients stay the same as with `nn.MaxPool3d`, even if the maximum of a window
    occurs several times. Windows of (1, 1, 1) are removed. Other pools are kept.
    """
    return replace_modules(model, nn.MaxPool3d, _planar)


def _planar(pool: nn.MaxPool3d) -> nn.Module:
    if pool.return_indices or pool.ceil_mode:
        return pool
    of_pool = (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
    windows = [_triple(values) for values in of_pool]
    one = [(1, 1, 0, 1)]
    axes = list(zip(*windows, strict=True))
    if axes == one * 3:
        return nn.Identity()
    if axes[:1] == one:
        return SpatialMaxPool3d(*(values[1:] for values in windows))
    if axes[1:] == one * 2:
        return TemporalMaxPool3d(*(values[:2] for values in windows))
    return pool
