"""From the loader's uint8 clips to the model's list of pathways, on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from fvcore.common.config import CfgNode
from torch import Tensor

__all__ = ["InputTransform", "blank_inputs", "pack_pathways"]


def pack_pathways(clips: Tensor, alpha: int | None) -> list[Tensor]:
    """Split (N, C, T, H, W) into the model's pathways: [all], or [slow, fast] with T/α slow frames.

    The slow frames are spaced as the host spaces them, first and last included.
    """
    if alpha is None:
        return [clips]
    frames = clips.shape[2]
    slow = torch.linspace(0, frames - 1, frames // alpha).long()
    return [clips.index_select(2, slow.to(clips.device)), clips]


@dataclass(frozen=True)
class InputTransform:
    """Normalise, flip and pack clips on `device`.

    `mean` and `std` are per channel of the model's input, of pixels in [0, 1]; `alpha` is None for
    a single pathway.
    """

    mean: Tensor
    std: Tensor
    alpha: int | None
    reverse_channels: bool
    device: torch.device

    @classmethod
    def from_config(cls, cfg: CfgNode, device: torch.device) -> InputTransform:
        two_pathways = cfg.MODEL.ARCH in cfg.MODEL.MULTI_PATHWAY_ARCH
        # The config has them in the order R, G, B, whatever the model is fed.
        order = -1 if cfg.DATA.REVERSE_INPUT_CHANNEL else 1
        return cls(
            mean=torch.tensor(cfg.DATA.MEAN[::order], device=device).view(1, 3, 1, 1, 1),
            std=torch.tensor(cfg.DATA.STD[::order], device=device).view(1, 3, 1, 1, 1),
            alpha=cfg.SLOWFAST.ALPHA if two_pathways else None,
            reverse_channels=cfg.DATA.REVERSE_INPUT_CHANNEL,
            device=device,
        )

    def __call__(self, clips: Tensor, flips: Tensor) -> list[Tensor]:
        """Pathways (N, 3, T, H, W) float of clips (N, T, H, W, 3) uint8 and flips (N,) bool."""
        clips = clips.to(self.device, non_blocking=True)
        if bool(flips.any()):
            flips = flips.to(self.device, non_blocking=True)
            clips = torch.where(flips.view(-1, 1, 1, 1, 1), clips.flip(3), clips)
        if self.reverse_channels:
            clips = clips.flip(4)
        pixels = clips.permute(0, 4, 1, 2, 3).to(
            torch.float32, memory_format=torch.contiguous_format
        )
        return pack_pathways(pixels.div_(255).sub_(self.mean).div_(self.std), self.alpha)


def blank_inputs(shape: Sequence[int], alpha: int | None, device: str = "meta") -> list[Tensor]:
    """Pathways of zeros for (clips, frames, crop), to try a shape on a model."""
    clips, frames, crop = shape
    return pack_pathways(torch.zeros(clips, 3, frames, crop, crop, device=device), alpha)
