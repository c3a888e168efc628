"""Pooling that is fast and deterministic on GPUs, in both memory formats.

torch's 3-D pooling kernels are slow on a GPU and support only one memory format. They also sum
gradients in an order that changes from run to run. Spatial pooling of (N, C, T, H, W), and temporal
pooling, can be computed by 2-D pooling of a view of the same memory.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.utils import _triple

from slowfast_patches.models.layers.replace import replace_modules


class TrainingGlobalPool3d(nn.AvgPool3d):
    """Average pooling over the whole input in training and over a fixed window in evaluation.

    PySlowFast fixes the window of a model's head by the crop of the config. Training at other
    shapes has to average over all of (N, C, T, H, W). Testing on larger crops slides the fixed
    window over the input, as PySlowFast does.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        mean: Tensor = _Mean.apply(x, (2, 3, 4))  # type: ignore[no-untyped-call]
        return mean


class MeanOverFrames(nn.Module):
    """Mean over any number of frames: (N, C, T, H, W) to (N, C, 1, H, W).

    PySlowFast's own pool only takes the number of frames of the config.
    """

    def forward(self, x: Tensor) -> Tensor:
        mean: Tensor = _Mean.apply(x, (2,))  # type: ignore[no-untyped-call]
        return mean


class _Mean(torch.autograd.Function):
    """Mean over some axes, with a gradient in the memory format of the input.

    The gradient that autograd computes is an expanded view of a single value. Where H and W are 1,
    the operations before it may then produce gradients whose strides fit neither memory format. The
    batch normalisation of torch 2.13 computes wrong results from such gradients on a CPU.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        last = x.is_contiguous(memory_format=torch.channels_last_3d) and not x.is_contiguous()
        ctx.memory_format = torch.channels_last_3d if last else torch.contiguous_format
        ctx.shape = x.shape
        ctx.count = math.prod(x.shape[axis] for axis in axes)
        return x.mean(axes, keepdim=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        share = gradients[0] / ctx.count
        room = torch.empty(
            ctx.shape, dtype=share.dtype, device=share.device, memory_format=ctx.memory_format
        )
        return room.copy_(share), None


class PlanarMaxPool3d(nn.MaxPool3d):
    """`nn.MaxPool3d` that uses 2-D pooling for windows of (1, k, k) and (k, 1, 1).

    Input and output are (N, C, T, H, W) in the same memory format, contiguous or channels_last_3d.
    A window of a single value returns the input itself. Values and gradients equal those of
    `nn.MaxPool3d`, also where several values of a window are the largest. Other windows are left to
    `nn.MaxPool3d`.
    """

    def forward(self, input: Tensor) -> Any:
        windows = [_triple(w) for w in (self.kernel_size, self.stride, self.padding)]
        frames, *planes = zip(*windows, strict=True)
        identity = (1, 1, 0)
        if frames == identity and planes == [identity, identity]:
            return input
        if frames == identity:
            return self._spatial(input)
        if planes == [identity, identity]:
            return self._temporal(input)
        return super().forward(input)

    def _spatial(self, x: Tensor) -> Tensor:
        clips, channels, frames = x.shape[:3]
        if x.is_contiguous() or not x.is_contiguous(memory_format=torch.channels_last_3d):
            planes = self._pool(x.flatten(1, 2), slice(1, 3))
            return torch.unflatten(planes, 1, (channels, frames))
        by_frame = x.transpose(1, 2).flatten(0, 1)  # (N·T, C, H, W), channels_last
        planes = self._pool(by_frame, slice(1, 3))
        return torch.unflatten(planes, 0, (clips, frames)).transpose(1, 2)

    def _temporal(self, x: Tensor) -> Tensor:
        return torch.unflatten(self._pool(x.flatten(3), slice(0, 2)), 3, x.shape[3:])

    def _pool(self, planes: Tensor, axes: slice) -> Tensor:
        """Pool (N, C, H, W) with this module's windows along two of the axes T, H and W."""
        kernel, stride, padding, dilation = (
            _triple(w)[axes] for w in (self.kernel_size, self.stride, self.padding, self.dilation)
        )
        return F.max_pool2d(planes, kernel, stride, padding, dilation, ceil_mode=self.ceil_mode)


def convert_pools(model: nn.Module) -> nn.Module:
    """Replace every `nn.MaxPool3d` by a `PlanarMaxPool3d`, as `replace_modules` does."""
    return replace_modules(model, nn.MaxPool3d, _planar)


def _planar(pool: nn.MaxPool3d) -> PlanarMaxPool3d:
    return PlanarMaxPool3d(
        pool.kernel_size,
        pool.stride,
        pool.padding,
        pool.dilation,
        pool.return_indices,
        pool.ceil_mode,
    )
