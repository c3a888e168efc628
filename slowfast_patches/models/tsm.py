"""Temporal shift modules: a network of 2-D convolutions that sees the frames beside each frame.

Ji Lin, Chuang Gan and Song Han, "TSM: Temporal Shift Module for Efficient Video Understanding",
ICCV 2019, section 3: the residual shift, at the start of every block's branch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["ShiftedConv3d", "build_tsm", "temporal_shift"]


def temporal_shift(x: Tensor, channels: int) -> Tensor:
    """Give each frame some channels of the frames beside it.

    Args:
        x: (N, C, T, H, W), in any memory format, which the result has too.
        channels: the first so many move one frame back (frame t has those of t + 1), the next so
            many one frame forward (frame t has those of t - 1); the others stay, and zeros come in
            at the ends.

    Returns:
        (N, C, T, H, W), never a view of `x`.
    """
    assert x.ndim == 5, x.shape
    assert 0 <= 2 * channels <= x.shape[1], (x.shape, channels)
    shifted: Tensor = _TemporalShift.apply(x, channels, False)  # type: ignore[no-untyped-call]
    return shifted


class _TemporalShift(torch.autograd.Function):
    """Its gradient is the shift the other way round: what moved back is moved forward.

    Left to autograd, the gradient of each of the three parts would be a tensor of the whole's size.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, channels: int, reverse: bool) -> Tensor:
        ctx.channels = channels
        ctx.reverse = reverse
        out = torch.empty_like(x)
        one = slice(0, channels)
        two = slice(channels, 2 * channels)
        back, forward = (two, one) if reverse else (one, two)
        out[:, back, :-1] = x[:, back, 1:]
        out[:, back, -1:] = 0
        out[:, forward, 1:] = x[:, forward, :-1]
        out[:, forward, :1] = 0
        out[:, 2 * channels :] = x[:, 2 * channels :]
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        gradient = _TemporalShift.apply(gradients[0], ctx.channels, not ctx.reverse)  # type: ignore[no-untyped-call]
        return gradient, None, None


class ShiftedConv3d(nn.Conv3d):
    """A convolution of what `temporal_shift` makes of its input; its state dict is a Conv3d's.

    Args:
        convolution: whose arguments, and whose very weights, it has.
        share: 1/`share` of the input's channels move back, as many forward.
    """

    def __init__(self, convolution: nn.Conv3d, share: int) -> None:
        self.__dict__.update(convolution.__dict__)  # no memory, no random numbers for new weights
        self.shifted_channels = convolution.in_channels // share

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(temporal_shift(input, self.shifted_channels))


def build_tsm(host_config: Any, shift_div: int) -> nn.Module:
    """The host's C2D ResNet without temporal pooling, with a residual shift in every block.

    `shift_div` 8 moves 1/8 of the channels each way before a branch's first convolution; 0 moves
    none, which leaves the 2-D network. The parameters and their names are the 2-D network's.
    `host_config` becomes that network's.
    """
    from slowfast.models.resnet_helper import ResBlock
    from slowfast.models.video_model_builder import ResNetModel

    host_config.MODEL.ARCH = "c2d_nopool"
    model: nn.Module = ResNetModel(host_config)
    if shift_div:
        for block in (m for m in model.modules() if isinstance(m, ResBlock)):
            block.branch2.a = ShiftedConv3d(block.branch2.a, shift_div)
    return model
