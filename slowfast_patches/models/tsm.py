"""TSM: a 2-D network that exchanges some channels between neighbouring frames.

Ji Lin, Chuang Gan and Song Han, "TSM: Temporal Shift Module for Efficient Video Understanding",
ICCV 2019. This is the residual shift of section 3, at the start of every residual branch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from slowfast_patches.models.layers.convolution import AdoptingConv3d


def temporal_shift(x: Tensor, channels: int) -> Tensor:
    """Shift some channels by one frame back and some by one frame forward.

    The first `channels` channels of frame t become those of frame t + 1. The next `channels` become
    those of frame t - 1. The others stay. Channels shifted in from beyond the clip are zero.

    Args:
        x: Features (N, C, T, H, W) in any memory format.
        channels: Number of channels to shift in each direction.

    Returns:
        A new tensor of the same shape and memory format.
    """
    assert x.ndim == 5, x.shape
    assert 0 <= 2 * channels <= x.shape[1], (x.shape, channels)
    shifted: Tensor = _TemporalShift.apply(x, channels, False)  # type: ignore[no-untyped-call]
    return shifted


class _TemporalShift(torch.autograd.Function):
    """Temporal shift whose backward is the shift in the opposite direction.

    Autograd's own backward would allocate a full-size gradient for each of the three groups of
    channels.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, channels: int, reverse: bool) -> Tensor:
        ctx.channels = channels
        ctx.reverse = reverse
        out = torch.empty_like(x)
        first = slice(0, channels)
        second = slice(channels, 2 * channels)
        back, forward = (second, first) if reverse else (first, second)
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


class ShiftedConv3d(AdoptingConv3d):
    """Convolution that applies `temporal_shift` to its input first.

    Args:
        convolution: The convolution to take over, with its parameters.
        share: 1 / `share` of the input channels move back, and as many move forward.
    """

    def __init__(self, convolution: nn.Conv3d, share: int) -> None:
        super().__init__(convolution)
        self.shifted_channels = convolution.in_channels // share

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(temporal_shift(input, self.shifted_channels))


def build_tsm(host_config: Any, shift_div: int) -> nn.Module:
    """Build PySlowFast's C2D ResNet without temporal pooling and shift channels in every block.

    The parameters and their names are those of the 2-D network.

    Args:
        host_config: Config object of PySlowFast. Its MODEL.ARCH is set to c2d_nopool.
        shift_div: 8 shifts 1/8 of the channels in each direction before the first convolution of
            every residual branch. 0 shifts none.
    """
    from slowfast.models.resnet_helper import ResBlock
    from slowfast.models.video_model_builder import ResNetModel

    host_config.MODEL.ARCH = "c2d_nopool"
    model: nn.Module = ResNetModel(host_config)
    if shift_div:
        for block in (m for m in model.modules() if isinstance(m, ResBlock)):
            block.branch2.a = ShiftedConv3d(block.branch2.a, shift_div)
    return model
