"""Convolutions in three dimensions as those in two, which are faster on a CPU.

oneDNN is slow where a kernel in three dimensions is long in time and has few channels, and torch
does not even call it for T × 1 × 1 with one thread and fewer than 16 clips. Of a clip as it lies,
(N, C, T, H, W), a kernel of T × 1 × 1 sees planes of T × H·W, and one that is longer in time is a
sum over its frames of kernels that see single frames. Results are equal up to rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["PlanarConv3d", "convert_convolutions"]

_WIDE = 16
"""Output channels from which oneDNN computes kernels in three dimensions well."""


class PlanarConv3d(nn.Conv3d):
    """`nn.Conv3d` that convolves in two dimensions where that is the same and faster.

    It is on the CPU, for contiguous input (N, C, T, H, W), of which channels_last_3d is not, and
    for kernels of T × 1 × 1, or of fewer than 16 output channels and T × k × k with T > 1.
    Parameters, and all the rest, are those of `nn.Conv3d`.
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if input.device.type == "cpu" and input.is_contiguous() and self._is_plain(input):
            frames, rows, columns = self.kernel_size
            if rows == columns == 1:
                return self._along_frames(input, weight, bias)
            if frames > 1 and self.out_channels < _WIDE and self.stride[0] == 1:
                return self._by_frames(input, weight, bias)
        output: Tensor = super()._conv_forward(input, weight, bias)
        return output

    def _is_plain(self, x: Tensor) -> bool:
        frames, rows, columns = self.kernel_size
        same = (frames // 2, rows // 2, columns // 2)
        one = self.groups == 1 and self.dilation == (1, 1, 1) and self.padding_mode == "zeros"
        return one and x.ndim == 5 and self.padding == same and frames % 2 == 1

    def _along_frames(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """T × 1 × 1, over planes of frames × places."""
        step, down, across = self.stride
        if (down, across) != (1, 1):
            x = x[..., ::down, ::across]
        middle = self.kernel_size[0] // 2
        reach = min(middle, x.shape[2] - 1)  # what is further off sees nothing but padding
        kernels = weight[:, :, middle - reach : middle + reach + 1].flatten(3)
        planes = F.conv2d(x.flatten(3), kernels, bias, (step, 1), (reach, 0))
        return torch.unflatten(planes, 3, x.shape[3:])

    def _by_frames(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """T × k × k: the sum over the kernel's frames, the taps, of what each makes of single
        frames of the clip.

        Taps of few channels are computed together, each as output channels of its own.
        """
        clips, _, frames = x.shape[:3]
        many, middle = self.out_channels, self.kernel_size[0] // 2
        by_frame, output = x.transpose(1, 2).contiguous(), None
        together = max(1, _WIDE // many)
        for start in range(0, 2 * middle + 1, together):
            taps = range(start - middle, min(start + together, 2 * middle + 1) - middle)
            seen = by_frame[:, max(0, taps[0]) : frames + min(0, taps[-1])]
            if not seen.shape[1]:  # they all look beyond the clip
                continue
            kernels = weight[:, :, start : start + together].permute(2, 0, 1, 3, 4).flatten(0, 1)
            planes = F.conv2d(seen.flatten(0, 1), kernels, None, self.stride[1:], self.padding[1:])
            planes = planes.view(clips, seen.shape[1], len(taps), many, *planes.shape[2:])
            if output is None:
                output = planes.new_zeros(clips, frames, many, *planes.shape[4:])
            for tap, of_tap in zip(taps, planes.unbind(2), strict=True):
                first, stop = max(0, -tap), frames - max(0, tap)
                shift = tap - max(0, taps[0])
                if first < stop:
                    output[:, first:stop] += of_tap[:, first + shift : stop + shift]
        assert output is not None
        output = output.transpose(1, 2)
        return output if bias is None else output + bias.to(output.dtype).view(-1, 1, 1, 1)


def convert_convolutions(model: nn.Module) -> nn.Module:
    """Make every `nn.Conv3d` of a model a `PlanarConv3d`; return the model.

    Subclasses of `nn.Conv3d` stay what they are.
    """
    for module in model.modules():
        if type(module) is nn.Conv3d:
            module.__class__ = PlanarConv3d
    return model
