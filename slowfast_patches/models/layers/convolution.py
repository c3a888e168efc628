"""Convolutions in three dimensions as those in two, which are faster on a CPU.

oneDNN is slow where a kernel in three dimensions is long in time and has few channels, and torch
does not even call it for T × 1 × 1 with one thread and fewer than 16 clips. Of a clip as it lies,
(N, C, T, H, W), a kernel of T × 1 × 1 sees planes of T × H·W, and one that is longer in time is a
sum over its frames of kernels that see single frames. In two dimensions oneDNN is slow for 1 × 1,
which is a product of matrices: of tiny clips one for all, of others one for each, as torch's own
code computes it. Results are equal up to rounding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["PlanarConv3d", "convert_convolutions"]

_WIDE = 16
"""Output channels from which oneDNN computes kernels in three dimensions well."""

# From here to `_HALF`: measured on an Intel Xeon with AVX-512, one thread and two.
_BROAD = 512
"""Channels up to which 1 × 1 × 1 is faster as a product of matrices than by oneDNN."""

_THIN = 4
"""The same for the output channels of T × 1 × 1."""

_FEW_PLACES = 9
"""Places from which on a product for each clip is faster than one for all clips."""

_HALF = (torch.bfloat16, torch.float16)


class PlanarConv3d(nn.Conv3d):
    """`nn.Conv3d` that is faster on a CPU, with the same results.

    Weights that meet padding alone are left out. Contiguous input (N, C, T, H, W) is then
    multiplied, or convolved in two dimensions, by kernels of T × 1 × 1, and by those of T × k × k
    with T > 1, a stride of 1 in time and fewer than 16 output channels. Kernels of even size,
    dilation, groups and padding that does not keep the size are left to torch. Parameters, and all
    the rest, are those of `nn.Conv3d`.
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if input.device.type != "cpu" or not self._is_plain(input):
            output: Tensor = super()._conv_forward(input, weight, bias)
            return output
        weight = _within(weight, input)
        frames, rows, columns = weight.shape[2:]
        if input.is_contiguous():
            if rows == columns == 1:
                return self._along_frames(input, weight, bias)
            if frames > 1 and self.out_channels < _WIDE and self.stride[0] == 1:
                return self._by_frames(input, weight, bias)
        padding = (frames // 2, rows // 2, columns // 2)
        return F.conv3d(input, weight, bias, self.stride, padding)

    def _is_plain(self, x: Tensor) -> bool:
        frames, rows, columns = self.kernel_size
        same = (frames // 2, rows // 2, columns // 2)
        odd = frames % 2 == rows % 2 == columns % 2 == 1
        one = self.groups == 1 and self.dilation == (1, 1, 1) and self.padding_mode == "zeros"
        return one and x.ndim == 5 and self.padding == same and odd

    def _along_frames(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """T × 1 × 1, over planes of frames × places."""
        step, down, across = self.stride
        if self.stride != (step, 1, 1):
            x = x[..., ::down, ::across]
        if weight.shape[2] == 1 and step > 1:
            x = x[:, :, ::step]
            step = 1
        if weight.shape[2] == 1 and x.shape[2:].numel() < _FEW_PLACES:
            by_place = x.flatten(2).transpose(1, 2)
            made = F.linear(by_place, weight.flatten(1), bias)
            return torch.unflatten(made.transpose(1, 2).contiguous(), 2, x.shape[2:])
        kernels = weight.flatten(3)
        padding = (weight.shape[2] // 2, 0)
        convolve = _multiply if _is_product(x, kernels) else F.conv2d
        planes = convolve(x.flatten(3), kernels, bias, (step, 1), padding)
        return torch.unflatten(planes, 3, x.shape[3:])

    def _by_frames(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """T × k × k: the sum over the kernel's frames, the taps, of what each makes of single
        frames of the clip.

        Taps of few channels are computed together, each as output channels of its own.
        """
        clips, _, frames = x.shape[:3]
        many, taps, *size = weight.shape[0], *weight.shape[2:]
        by_frame = x.transpose(1, 2).flatten(0, 1)
        output = None
        together = max(1, _WIDE // many)
        padding = tuple(side // 2 for side in size)
        for start in range(0, taps, together):
            kernels = weight[:, :, start : start + together].permute(2, 0, 1, 3, 4).flatten(0, 1)
            planes = F.conv2d(by_frame, kernels, None, self.stride[1:], padding)
            planes = planes.view(clips, frames, planes.shape[1] // many, many, *planes.shape[2:])
            of_taps = _SumOfTaps.apply(planes, start - taps // 2)  # type: ignore[no-untyped-call]
            output = of_taps if output is None else output + of_taps
        assert isinstance(output, Tensor)
        return output if bias is None else output + bias.to(output.dtype).view(-1, 1, 1, 1)


class _SumOfTaps(torch.autograd.Function):
    """(N, T, K, C, H, W), what K taps make of each frame, as the clip (N, C, T, H, W) that they add
    up to, the first of them seeing `first` frames later.

    Left to autograd, the gradient of each tap would be a tensor of the whole's size.
    """

    @staticmethod
    def forward(ctx: Any, planes: Tensor, first: int) -> Tensor:
        ctx.first = first
        ctx.taps = planes.shape[2]
        clips, frames, _, channels = planes.shape[:4]
        output = planes.new_zeros(clips, channels, frames, *planes.shape[4:])
        for tap, (seen, made) in enumerate(_spans(first, ctx.taps, frames)):
            output[:, :, made] += planes[:, seen, tap].transpose(1, 2)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        clips, channels, frames = grad.shape[:3]
        planes = grad.new_zeros(clips, frames, ctx.taps, channels, *grad.shape[3:])
        for tap, (seen, made) in enumerate(_spans(ctx.first, ctx.taps, frames)):
            planes[:, seen, tap] = grad[:, :, made].transpose(1, 2)
        return planes, None


def _spans(first: int, taps: int, frames: int) -> list[tuple[slice, slice]]:
    """The frames that each tap sees, and those that it makes."""
    return [
        (slice(max(0, tap), frames + min(0, tap)), slice(max(0, -tap), frames - max(0, tap)))
        for tap in range(first, first + taps)
    ]


def _within(weight: Tensor, x: Tensor) -> Tensor:
    """The weights that meet at least one pixel of a clip.

    With the others, oneDNN 3.12's results in bfloat16 can be wrong.
    """
    for dim in (2, 3, 4):
        middle = weight.shape[dim] // 2
        reach = min(middle, x.shape[dim] - 1)
        if reach < middle:  # the gradient of a part is copied into one of the whole
            weight = weight.narrow(dim, middle - reach, 2 * reach + 1)
    return weight


def _is_product(x: Tensor, kernels: Tensor) -> bool:
    """Whether a product of matrices for each clip is faster than oneDNN."""
    if torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling() or x.dtype in _HALF:
        return False
    if kernels.shape[2] > 1:
        return len(kernels) <= _THIN
    return max(kernels.shape[:2]) <= _BROAD


def _multiply(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: tuple[int, int],
    padding: tuple[int, int],
) -> Tensor:
    """`F.conv2d` by the code that torch has where there is no oneDNN."""
    kernel = weight.shape[2:]
    planes: Tensor = torch.ops.aten.thnn_conv2d(x, weight, kernel, bias, stride, padding)
    return planes


def convert_convolutions(model: nn.Module) -> nn.Module:
    """Make every `nn.Conv3d` of a model a `PlanarConv3d`; return the model.

    Subclasses of `nn.Conv3d` stay what they are.
    """
    for module in model.modules():
        if type(module) is nn.Conv3d:
            module.__class__ = PlanarConv3d
    return model
