"""TSM: a 2-D network that exchanges some channels between neighbouring frames.

Ji Lin, Chuang Gan and Song Han, "TSM: Temporal Shift Module for Efficient Video Understanding",
ICCV 2019. The module implements the residual shift of section 3: every residual branch starts with
a temporal shift.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.rules import fewest_frames
from slowfast_patches.extras.tsm.keys import TsmKeys
from slowfast_patches.models.build_model import build_resnet
from slowfast_patches.models.layers.conv_and_pool import AdoptingConv3d
from slowfast_patches.utils.errors import UserError


def temporal_shift(x: Tensor, channels: int) -> Tensor:
    """Shift some channels one frame back and some channels one frame forward.

    The first `channels` channels of output frame t come from input frame t + 1. The next `channels`
    channels come from input frame t - 1. The remaining channels do not move. Channels that would
    come from outside the clip are zero.

    Args:
        x: Features (N, C, T, H, W) in any memory format.
        channels: Number of channels to shift in each direction.

    Returns:
        A new tensor of the same shape and, if some channels do not move, memory format.
    """
    assert 0 <= 2 * channels <= x.shape[1], (x.shape, channels)
    back, forward, fixed = torch.split(x, [channels, channels, x.shape[1] - 2 * channels], 1)
    # The numbers are for both ends of W, H and T. A negative number crops.
    shifted = F.pad(back, (0, 0, 0, 0, -1, 1)), F.pad(forward, (0, 0, 0, 0, 1, -1))
    return torch.cat([*shifted, fixed], 1)


class ShiftedConv3d(AdoptingConv3d):
    """Convolution that applies `temporal_shift` to its input first.

    Args:
        convolution: Convolution to replace. The new module uses the same parameters.
        share: Divisor of the number of input channels. in_channels // `share` channels are shifted
            back, and as many are shifted forward.
    """

    def __init__(self, convolution: nn.Conv3d, share: int) -> None:
        super().__init__(convolution)
        self.shifted_channels = convolution.in_channels // share

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(temporal_shift(input, self.shifted_channels))


def check_frames(recipe: Recipe) -> None:
    """Check that all clips have at least 2 frames, between which channels are shifted.

    Raises:
        UserError: A shape of the schedule has a single frame.
    """
    if TsmKeys.of(recipe).shift_div and fewest_frames(recipe) < 2:
        raise UserError(
            "MODEL.ARCH tsm needs clips of 2 frames or more, because the shift replaces channels "
            f"of a single frame by 0. DATA.NUM_FRAMES is {recipe.data.num_frames}, but a shape of "
            "the schedule has only 1 frame. Increase DATA.NUM_FRAMES, or change "
            "MULTIGRID.LONG_CYCLE_FACTORS."
        )


def build_tsm(recipe: Recipe) -> nn.Module:
    """Build a TSM: PySlowFast's C2D ResNet without temporal pooling, with a shift in every block.

    TSM.SHIFT_DIV is the share of the channels to shift in each direction before the first
    convolution of every residual branch. The parameters have the same names and shapes as without
    the shift.
    """
    model = build_resnet(recipe.replaced({"MODEL.ARCH": "c2d_nopool"}))
    from slowfast.models.resnet_helper import ResBlock

    if share := TsmKeys.of(recipe).shift_div:
        for block in (m for m in model.modules() if isinstance(m, ResBlock)):
            block.branch2.a = ShiftedConv3d(block.branch2.a, share)
    return model
