"""Convolutions and pooling of PySlowFast's networks, computed by 2-D operations.

Convolutions are faster on a CPU. oneDNN is slow if a 3-D kernel spans several frames and has few
output channels. For kernels of T × 1 × 1, torch does not use oneDNN at all with one thread and
fewer than 16 clips. The following kernels are computed differently. The input has the shape
(N, C, T, H, W):

- T × 1 × 1: one 2-D convolution over planes of T × (H·W).
- T × k × k: the sum of T 2-D convolutions, each applied to single frames.
- 1 × 1 × 1: matrix products, because oneDNN is slow for 2-D kernels of 1 × 1 as well. Tiny clips
  are computed by one matrix product together, and larger clips by one matrix product each.

The results equal the results of `nn.Conv3d` up to rounding.

Pooling is fast and deterministic on GPUs, in both memory formats, and accepts every shape of a
schedule. torch's 3-D pooling kernels are slow on a GPU, support only one memory format, and sum
gradients in an order that changes from run to run. Instead, spatial pooling and temporal pooling
are computed by 2-D pooling of a view of the input.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.utils import _triple

from slowfast_patches.models.layers.replace import replace_modules

# The following limits were measured on an Intel Xeon with AVX-512, with one and with two threads.
_MIN_CHANNELS_3D = 16
"""Minimum number of output channels for which oneDNN computes 3-D kernels fast."""

_MAX_CHANNELS_POINTWISE = 512
"""Maximum number of channels for which matrix products compute 1 × 1 × 1 faster than oneDNN."""

_MAX_CHANNELS_TEMPORAL = 4
"""Maximum number of output channels for which matrix products compute T × 1 × 1 faster than oneDNN.
"""

_MIN_POSITIONS_PER_CLIP = 9
"""Minimum number of positions T·H·W for which one matrix product per clip is faster than one matrix
product for all clips."""

_HALF = (torch.bfloat16, torch.float16)


class AdoptingConv3d(nn.Conv3d):
    """Base class of convolutions that reuse the arguments and parameters of another convolution.

    The parameters are the same objects under the same names. Creating the module neither allocates
    memory for parameters nor draws random numbers.

    Args:
        convolution: Convolution whose arguments and parameters are reused.
    """

    def __init__(self, convolution: nn.Conv3d) -> None:
        other: Any = convolution  # Any, because torch annotates kernel sizes as tuple[int, ...]
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
        """Do nothing, because the parameters belong to another convolution."""


class PlanarConv3d(AdoptingConv3d):
    """`nn.Conv3d` that is faster on a CPU and gives the same results up to rounding.

    On a CPU, weights that would only be multiplied by padding are skipped. For contiguous input
    (N, C, T, H, W), two kinds of kernels are computed by 2-D convolutions or matrix products:

    - T × 1 × 1
    - T × k × k with T > 1, a temporal stride of 1 and fewer than 16 output channels

    All other cases use the forward pass of `nn.Conv3d`: other devices, kernels of even size,
    dilation, groups, and padding that changes the size.
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
        odd = all(size % 2 for size in self.kernel_size)
        same = tuple(size // 2 for size in self.kernel_size)
        options = (self.padding, self.dilation, self.groups, self.padding_mode)
        return odd and x.ndim == 5 and options == (same, (1, 1, 1), 1, "zeros")

    def _temporal_conv(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Convolve with a kernel of T × 1 × 1, as a 2-D convolution over frames × positions."""
        step, down, across = self.stride
        if weight.shape[2] == 1:
            x = x[:, :, ::step]
            step = 1
        x = x[..., ::down, ::across]
        if weight.shape[2] == 1 and x.shape[2:].numel() < _MIN_POSITIONS_PER_CLIP:
            positions = x.flatten(2).transpose(1, 2)
            output = F.linear(positions, weight.flatten(1), bias)
            return torch.unflatten(output.transpose(1, 2).contiguous(), 2, x.shape[2:])
        planes, kernels = x.flatten(3), weight.flatten(3)
        options = (bias, (step, 1), (weight.shape[2] // 2, 0))
        if _prefers_matrix_product(x, kernels):  # by torch's own kernel instead of oneDNN
            output = torch.ops.aten.thnn_conv2d(planes, kernels, kernels.shape[2:], *options)
        else:
            output = F.conv2d(planes, kernels, *options)
        return torch.unflatten(output, 3, x.shape[3:])

    def _conv_frame_by_frame(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Convolve with a kernel of T × k × k, as the sum of T 2-D convolutions of single frames.

        The T temporal slices of the kernel are called taps. If taps have few output channels,
        several taps are stacked along the channels and computed by one 2-D convolution.
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
    """Sum of the outputs of K taps (N, T, K, C, H, W) to a clip (N, C, T, H, W).

    The output of tap k for input frame t is added to output frame t - (`first` + k). The custom
    backward pass saves memory: autograd would allocate a gradient of the size of all taps for each
    single tap.
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
    """Return (input frames, output frames) for each tap, as slices of equal length."""
    return [
        (slice(max(0, tap), frames + min(0, tap)), slice(max(0, -tap), frames - max(0, tap)))
        for tap in range(first, first + taps)
    ]


def _trim_to_clip(weight: Tensor, x: Tensor) -> Tensor:
    """Return the part of a kernel that is multiplied by at least one pixel of a clip.

    All other weights are only multiplied by padding. If these weights are kept, oneDNN 3.12 can
    return wrong results in bfloat16.
    """
    for dim in (2, 3, 4):
        middle = weight.shape[dim] // 2
        reach = min(middle, x.shape[dim] - 1)
        # Do not narrow needlessly: the backward of `narrow` copies into a full-size gradient.
        if reach < middle:
            weight = weight.narrow(dim, middle - reach, 2 * reach + 1)
    return weight


def _prefers_matrix_product(x: Tensor, kernels: Tensor) -> bool:
    """Return whether matrix products compute this convolution faster than oneDNN."""
    if torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling() or x.dtype in _HALF:
        return False
    if kernels.shape[2] > 1:
        return len(kernels) <= _MAX_CHANNELS_TEMPORAL
    return max(kernels.shape[:2]) <= _MAX_CHANNELS_POINTWISE


def convert_convolutions(model: nn.Module) -> nn.Module:
    """Replace every `nn.Conv3d` by a `PlanarConv3d` (see `replace_modules`)."""
    return replace_modules(model, nn.Conv3d, PlanarConv3d)


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
