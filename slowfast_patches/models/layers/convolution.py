"""3-D convolutions computed as 2-D convolutions or matrix products, which is faster on a CPU.

oneDNN computes some 3-D convolutions slowly: those whose kernels span several frames and have few
output channels. With one thread and fewer than 16 clips, torch does not use oneDNN at all for
kernels of T × 1 × 1. This module computes them in other ways, from input (N, C, T, H, W):

- A kernel of T × 1 × 1 is a 2-D convolution over planes of T × H·W.
- A kernel of T × k × k is a sum of T 2-D convolutions, each of which sees single frames.
- A kernel of 1 × 1 × 1 is a matrix product, because oneDNN is slow for 1 × 1 in 2-D as well. Tiny
  clips share one product, larger clips have one each.

The results equal those of `nn.Conv3d` up to rounding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slowfast_patches.models.layers.replace import replace_modules

# These limits were measured on an Intel Xeon with AVX-512, with one thread and with two.
_MIN_CHANNELS_3D = 16
"""Output channels from which oneDNN computes 3-D kernels fast."""

_MAX_CHANNELS_POINTWISE = 512
"""Channels up to which a matrix product computes 1 × 1 × 1 faster than oneDNN."""

_MAX_CHANNELS_TEMPORAL = 4
"""Output channels up to which a matrix product computes T × 1 × 1 faster than oneDNN."""

_MIN_POSITIONS_PER_CLIP = 9
"""Positions T·H·W from which one matrix product per clip is faster than one for all clips."""

_HALF = (torch.bfloat16, torch.float16)


class AdoptingConv3d(nn.Conv3d):
    """Base of convolutions that take over another convolution's arguments and parameters.

    The parameters are the same objects under the same names. No memory is allocated and no random
    numbers are drawn for new ones.

    Args:
        convolution: The convolution to take over.
    """

    def __init__(self, convolution: nn.Conv3d) -> None:
        other: Any = convolution  # torch annotates its windows as tuples of any length
        super().__init__(
            other.in_channels,
            other.out_channels,
            other.kernel_size,
            other.stride,
            other.padding,
            other.dilation,
            other.groups,
            bias=other.bias is not None,
            padding_mode=other.padding_mode,
            device="meta",
        )
        self.weight = convolution.weight
        self.bias = convolution.bias
        self.train(convolution.training)

    def reset_parameters(self) -> None:
        """Draw nothing, since the parameters are those of another convolution."""


class PlanarConv3d(AdoptingConv3d):
    """`nn.Conv3d` that is faster on a CPU and gives the same results up to rounding.

    On a CPU, weights that only meet padding are left out. Contiguous input (N, C, T, H, W) is then
    computed by 2-D convolutions or matrix products for two sorts of kernels: T × 1 × 1, and
    T × k × k with T > 1, a temporal stride of 1 and fewer than 16 output channels.

    `nn.Conv3d` itself computes everything else: other devices, kernels of even size, dilation,
    groups, and padding that changes the size.
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if input.device.type != "cpu" or not self._is_supported(input):
            output: Tensor = super()._conv_forward(input, weight, bias)
            return output
        weight = _trim_to_clip(weight, input)
        frames, rows, columns = weight.shape[2:]
        if input.is_contiguous():
            if rows == columns == 1:
                return self._temporal_conv(input, weight, bias)
            if frames > 1 and self.out_channels < _MIN_CHANNELS_3D and self.stride[0] == 1:
                return self._conv_frame_by_frame(input, weight, bias)
        padding = (frames // 2, rows // 2, columns // 2)
        return F.conv3d(input, weight, bias, self.stride, padding)

    def _is_supported(self, x: Tensor) -> bool:
        frames, rows, columns = self.kernel_size
        same = (frames // 2, rows // 2, columns // 2)
        odd = frames % 2 == rows % 2 == columns % 2 == 1
        one = self.groups == 1 and self.dilation == (1, 1, 1) and self.padding_mode == "zeros"
        return one and x.ndim == 5 and self.padding == same and odd

    def _temporal_conv(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute a kernel of T × 1 × 1 over planes of frames × positions."""
        step, down, across = self.stride
        if self.stride != (step, 1, 1):
            x = x[..., ::down, ::across]
        if weight.shape[2] == 1 and step > 1:
            x = x[:, :, ::step]
            step = 1
        if weight.shape[2] == 1 and x.shape[2:].numel() < _MIN_POSITIONS_PER_CLIP:
            positions = x.flatten(2).transpose(1, 2)
            output = F.linear(positions, weight.flatten(1), bias)
            return torch.unflatten(output.transpose(1, 2).contiguous(), 2, x.shape[2:])
        kernels = weight.flatten(3)
        padding = (weight.shape[2] // 2, 0)
        convolve = _matrix_product_conv2d if _prefers_matrix_product(x, kernels) else F.conv2d
        planes = convolve(x.flatten(3), kernels, bias, (step, 1), padding)
        return torch.unflatten(planes, 3, x.shape[3:])

    def _conv_frame_by_frame(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute a kernel of T × k × k as a sum of T 2-D convolutions of single frames.

        The T temporal slices of the kernel are called taps. Taps with few output channels are
        stacked along the channels and computed by one 2-D convolution.
        """
        clips, _, frames = x.shape[:3]
        channels, taps, *size = weight.shape[0], *weight.shape[2:]
        by_frame = x.transpose(1, 2).flatten(0, 1)
        output = None
        stacked = max(1, _MIN_CHANNELS_3D // channels)
        padding = tuple(side // 2 for side in size)
        for start in range(0, taps, stacked):
            kernels = weight[:, :, start : start + stacked].permute(2, 0, 1, 3, 4).flatten(0, 1)
            planes = F.conv2d(by_frame, kernels, None, self.stride[1:], padding)
            planes = planes.view(clips, frames, -1, channels, *planes.shape[2:])
            of_taps = _SumOfTaps.apply(planes, start - taps // 2)  # type: ignore[no-untyped-call]
            output = of_taps if output is None else output + of_taps
        assert isinstance(output, Tensor)
        return output if bias is None else output + bias.to(output.dtype).view(-1, 1, 1, 1)


class _SumOfTaps(torch.autograd.Function):
    """Sum of the outputs of K taps, (N, T, K, C, H, W), as a clip (N, C, T, H, W).

    Tap k reads the frame `first + k` frames after the one that it contributes to. With autograd's
    own backward, each tap would have a gradient as large as all taps together.
    """

    @staticmethod
    def forward(ctx: Any, planes: Tensor, first: int) -> Tensor:
        ctx.first = first
        ctx.taps = planes.shape[2]
        clips, frames, _, channels = planes.shape[:4]
        output = planes.new_zeros(clips, channels, frames, *planes.shape[4:])
        for tap, (source, target) in enumerate(_spans(first, ctx.taps, frames)):
            output[:, :, target] += planes[:, source, tap].transpose(1, 2)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        clips, channels, frames = grad.shape[:3]
        planes = grad.new_zeros(clips, frames, ctx.taps, channels, *grad.shape[3:])
        for tap, (source, target) in enumerate(_spans(ctx.first, ctx.taps, frames)):
            planes[:, source, tap] = grad[:, :, target].transpose(1, 2)
        return planes, None


def _spans(first: int, taps: int, frames: int) -> list[tuple[slice, slice]]:
    """Return, for each tap, the frames that it reads and the frames that it contributes to."""
    return [
        (slice(max(0, tap), frames + min(0, tap)), slice(max(0, -tap), frames - max(0, tap)))
        for tap in range(first, first + taps)
    ]


def _trim_to_clip(weight: Tensor, x: Tensor) -> Tensor:
    """Return the part of a kernel that meets at least one pixel of a clip.

    The rest only meets padding. With it, oneDNN 3.12 can return wrong results in bfloat16.
    """
    for dim in (2, 3, 4):
        middle = weight.shape[dim] // 2
        reach = min(middle, x.shape[dim] - 1)
        # Do not narrow needlessly: the backward of `narrow` copies into a full-size gradient.
        if reach < middle:
            weight = weight.narrow(dim, middle - reach, 2 * reach + 1)
    return weight


def _prefers_matrix_product(x: Tensor, kernels: Tensor) -> bool:
    """Return whether matrix products compute this faster than oneDNN."""
    if torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling() or x.dtype in _HALF:
        return False
    if kernels.shape[2] > 1:
        return len(kernels) <= _MAX_CHANNELS_TEMPORAL
    return max(kernels.shape[:2]) <= _MAX_CHANNELS_POINTWISE


def _matrix_product_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: tuple[int, int],
    padding: tuple[int, int],
) -> Tensor:
    """Compute `F.conv2d` by matrix products, torch's way without oneDNN."""
    kernel = weight.shape[2:]
    planes: Tensor = torch.ops.aten.thnn_conv2d(x, weight, kernel, bias, stride, padding)
    return planes


def convert_convolutions(model: nn.Module) -> nn.Module:
    """Replace every `nn.Conv3d` by a `PlanarConv3d`, as `replace_modules` does."""
    return replace_modules(model, nn.Conv3d, PlanarConv3d)
