"""Pooling that is fast and deterministic on GPUs, in both memory formats.

torch's 3-D pooling kernels are slow on a GPU, support only one memory format, and sum gradients in
an order that changes from run to run. Instead, this module computes spatial pooling and temporal
pooling of (N, C, T, H, W) by 2-D pooling of a view of the input.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
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
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        share = gradients[0] / ctx.count
        room = torch.empty(
            ctx.shape, dtype=share.dtype, device=share.device, memory_format=ctx.memory_format
        )
        return room.copy_(share), None


class PlanarMaxPool3d(nn.MaxPool3d):
    """`nn.MaxPool3d` that uses 2-D pooling for windows of (1, k, k) and (k, 1, 1).

    All other windows use the forward pass of `nn.MaxPool3d`, except that a window of (1, 1, 1)
    returns the input itself. Values and gradients are always the same as with `nn.MaxPool3d`, even
    if the maximum of a window occurs several times.

    Shape:
        Input and output: (N, C, T, H, W), contiguous or channels_last_3d. The output has the memory
        format of the input.
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
        """Pool `planes` (N, C, H, W) in 2-D.

        Args:
            planes: Input of the 2-D pooling.
            axes: The two of the axes (T, H, W) that H and W of `planes` correspond to. They select
                the window, stride, padding and dilation.
        """
        kernel, stride, padding, dilation = (
            _triple(w)[axes] for w in (self.kernel_size, self.stride, self.padding, self.dilation)
        )
        return F.max_pool2d(planes, kernel, stride, padding, dilation, ceil_mode=self.ceil_mode)


def convert_pools(model: nn.Module) -> nn.Module:
    """Replace every `nn.MaxPool3d` by a `PlanarMaxPool3d` (see `replace_modules`)."""
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
