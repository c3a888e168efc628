"""Pooling that is fast and deterministic on GPUs, in both memory formats.

Of torch's own kernels on a GPU, those that pool in three dimensions are slow, know one memory
format, and add up gradients in an order that changes from run to run. Pooling over the planes of
(N, C, T, H, W), or along its frames, is pooling in two dimensions of the same memory.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.utils import _triple

__all__ = ["MeanOverFrames", "PlanarMaxPool3d", "TrainingGlobalPool3d", "convert_pools"]


class TrainingGlobalPool3d(nn.AvgPool3d):
    """Average pooling over the whole input in training, over the released window in evaluation.

    The host fixes the head's window by the config's crop. Training at other shapes needs the whole
    of (N, C, T, H, W); testing on larger crops slides the released window, fully convolutionally.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        mean: Tensor = _Mean.apply(x, (2, 3, 4))  # type: ignore[no-untyped-call]
        return mean


class MeanOverFrames(nn.Module):
    """(N, C, 1, H, W) of any number of frames, where the host fixes it by the config's."""

    def forward(self, x: Tensor) -> Tensor:
        mean: Tensor = _Mean.apply(x, (2,))  # type: ignore[no-untyped-call]
        return mean


class _Mean(torch.autograd.Function):
    """The mean over some axes, whose gradient lies in memory as the input does.

    Autograd's own is a view, one value in all places. What follows may then choose strides that say
    neither format where H and W are 1, and torch 2.13's batch normalisation reads such gradients
    wrongly on the CPU.
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
    """`nn.MaxPool3d` that pools in two dimensions where that is the same.

    Input and output are (N, C, T, H, W), in one memory format, contiguous or channels_last_3d.
    Windows of (1, k, k) and of (k, 1, 1) are pooled over a view of the input; a window of one value
    gives the input itself. Values and gradients, where several values are the largest too, are
    those of `nn.MaxPool3d`, which does all the rest.
    """

    def forward(self, input: Tensor) -> Any:
        windows = [_triple(w) for w in (self.kernel_size, self.stride, self.padding)]
        frames, *planes = zip(*windows, strict=True)
        none = (1, 1, 0)
        if frames == none and planes == [none, none]:
            return input
        if frames == none:
            return self._over_planes(input)
        if planes == [none, none]:
            return self._along_frames(input)
        return super().forward(input)

    def _over_planes(self, x: Tensor) -> Tensor:
        clips, channels, frames = x.shape[:3]
        if x.is_contiguous() or not x.is_contiguous(memory_format=torch.channels_last_3d):
            planes = self._pool(x.flatten(1, 2), slice(1, 3))
            return torch.unflatten(planes, 1, (channels, frames))
        by_frame = x.transpose(1, 2).flatten(0, 1)  # (N·T, C, H, W), channels_last
        planes = self._pool(by_frame, slice(1, 3))
        return torch.unflatten(planes, 0, (clips, frames)).transpose(1, 2)

    def _along_frames(self, x: Tensor) -> Tensor:
        return torch.unflatten(self._pool(x.flatten(3), slice(0, 2)), 3, x.shape[3:])

    def _pool(self, planes: Tensor, axes: slice) -> Tensor:
        """Pool (N, C, H, W) with the windows of two of three axes."""
        kernel, stride, padding, dilation = (
            _triple(w)[axes] for w in (self.kernel_size, self.stride, self.padding, self.dilation)
        )
        return F.max_pool2d(planes, kernel, stride, padding, dilation, ceil_mode=self.ceil_mode)


def convert_pools(module: nn.Module) -> nn.Module:
    """Replace every `nn.MaxPool3d` in `module` by a `PlanarMaxPool3d`; return the result.

    Subclasses of `nn.MaxPool3d` stay what they are.
    """
    if type(module) is nn.MaxPool3d:
        planar = PlanarMaxPool3d.__new__(PlanarMaxPool3d)
        planar.__dict__.update(module.__dict__)
        return planar
    for name, child in list(module.named_children()):
        setattr(module, name, convert_pools(child))
    return module
