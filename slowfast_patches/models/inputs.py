"""From the loader's uint8 clips to the model's list of pathways, on the device."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import torch
from fvcore.common.config import CfgNode
from torch import Tensor

from slowfast_patches.models.side_stream import side_stream
from slowfast_patches.models.solver import half_type

__all__ = ["InputTransform", "blank_inputs", "pack_pathways"]

logger = logging.getLogger(__name__)


def pack_pathways(clips: Tensor, alpha: int | None) -> list[Tensor]:
    """Split (N, C, T, H, W) into the model's pathways: [all], or [slow, fast] with T/α slow frames.

    The slow frames are spaced as the host spaces them, first and last included. They are in the
    memory format of `clips`.
    """
    if alpha is None:
        return [clips]
    # Not `index_select`: a GPU would have to wait for the indices to be copied there.
    slow = [clips[:, :, frame : frame + 1] for frame in _slow_frames(clips.shape[2], alpha)]
    return [torch.cat(slow, 2), clips]


@cache
def _slow_frames(frames: int, alpha: int) -> tuple[int, ...]:
    """The frames of a clip that the slow pathway sees."""
    places = torch.linspace(0, frames - 1, frames // alpha, device="cpu")
    return tuple(places.long().tolist())


@dataclass(frozen=True, eq=False)  # each is itself, and tensors do not compare
class InputTransform:
    """Normalise, flip and pack clips on `device`.

    Pixels are (u / 255 - mean) / std in float32, rounded once where `dtype` is a half.

    `mean` and `std` (3,) are per channel of the model's input, of pixels in [0, 1]; `alpha` is None
    for a single pathway. The pathways are in `dtype`, in channels_last_3d if `channels_last`.
    """

    mean: Tensor
    std: Tensor
    alpha: int | None
    reverse_channels: bool
    device: torch.device
    dtype: torch.dtype = torch.float32
    channels_last: bool = False

    @classmethod
    def from_config(cls, cfg: CfgNode, device: torch.device) -> InputTransform:
        two_pathways = cfg.MODEL.ARCH in cfg.MODEL.MULTI_PATHWAY_ARCH
        # The config has them in the order R, G, B, whatever the model is fed.
        order = -1 if cfg.DATA.REVERSE_INPUT_CHANNEL else 1
        return cls(
            mean=torch.tensor(cfg.DATA.MEAN[::order], device=device),
            std=torch.tensor(cfg.DATA.STD[::order], device=device),
            alpha=cfg.SLOWFAST.ALPHA if two_pathways else None,
            reverse_channels=cfg.DATA.REVERSE_INPUT_CHANNEL,
            device=device,
            # Every model begins with a convolution, whose input autocast would round to this.
            dtype=half_type(device) if cfg.TRAIN.MIXED_PRECISION else torch.float32,
            channels_last=cfg.MODEL.CHANNELS_LAST,
        )

    def __call__(self, clips: Tensor, flips: Tensor) -> list[Tensor]:
        """Pathways (N, 3, T, H, W) of clips (N, T, H, W, 3) uint8 and flips (N,) bool, on the CPU.

        On a GPU it is queued beside what the device computes, see `SideStream`; from pinned memory
        it waits for nothing else.
        """
        assert clips.device.type == flips.device.type == "cpu", (clips.device, flips.device)
        if self.device.type != "cuda":
            return self._in_passes(clips, flips)
        return side_stream(self.device)(lambda: self._on_gpu(clips, flips))

    def _on_gpu(self, clips: Tensor, flips: Tensor) -> list[Tensor]:
        kernel = _working_kernel(self)
        # The allocator of pinned memory notes which stream a copy that waits for nothing is queued
        # in, this one, and gives the memory to nobody else before the copy is done. From other
        # memory, the driver has taken the bytes when the call returns.
        there = clips.to(self.device, non_blocking=True)
        if kernel is None:
            return self._in_passes(there, flips)
        return self._in_one_pass(kernel, there, flips.to(self.device, non_blocking=True))

    def _in_one_pass(self, kernel: ModuleType, clips: Tensor, flips: Tensor) -> list[Tensor]:
        frames = clips.shape[1]
        slow = None if self.alpha is None else _slow_frames(frames, self.alpha)
        pathways: list[Tensor] = kernel.normalise(
            clips,
            flips,
            self.mean,
            self.std,
            slow,
            reverse_channels=self.reverse_channels,
            dtype=self.dtype,
            memory_format=self._memory_format,
        )
        return pathways

    def _in_passes(self, clips: Tensor, flips: Tensor) -> list[Tensor]:
        """Without the kernel; clip by clip, since most of a clip stays in a processor's cache."""
        n, t, h, w, channels = clips.shape
        every = torch.empty(
            (n, channels, t, h, w),
            dtype=self.dtype,
            device=clips.device,
            memory_format=self._memory_format,
        )
        mean, std = self.mean.view(-1, 1, 1, 1), self.std.view(-1, 1, 1, 1)
        for clip, flip, out in zip(clips, flips.tolist(), every, strict=True):
            mirrored = [axis for axis, turn in ((2, flip), (3, self.reverse_channels)) if turn]
            source = (clip.flip(mirrored) if mirrored else clip).permute(3, 0, 1, 2)
            pixels = out if self.dtype == torch.float32 else torch.empty_like(out, dtype=mean.dtype)
            pixels.copy_(source).div_(255).sub_(mean).div_(std)
            if pixels is not out:
                out.copy_(pixels)
        return pack_pathways(every, self.alpha)

    @property
    def _memory_format(self) -> torch.memory_format:
        return torch.channels_last_3d if self.channels_last else torch.contiguous_format


@cache
def _working_kernel(transform: InputTransform) -> ModuleType | None:
    """The module of the GPU's kernel; None, with a warning, where Triton cannot make it.

    It is tried on a clip of a pixel, which compiles what the transform needs, whatever the shapes.
    """
    try:
        from slowfast_patches.models import input_kernel

        frames, device = transform.alpha or 1, transform.device
        clip = torch.zeros((1, frames, 1, 1, 3), dtype=torch.uint8, device=device)
        flip = torch.zeros(1, dtype=torch.bool, device=device)
        transform._in_one_pass(input_kernel, clip, flip)
    except Exception as error:
        logger.warning(
            "clips are prepared in several passes on the GPU instead of one: Triton, which comes "
            "with torch's CUDA builds and needs a C compiler, does not work here (%s)",
            error,
        )
        return None
    return input_kernel


def blank_inputs(shape: Sequence[int], alpha: int | None, device: str = "meta") -> list[Tensor]:
    """Pathways of zeros for (clips, frames, crop), to try a shape on a model."""
    clips, frames, crop = shape
    return pack_pathways(torch.zeros(clips, 3, frames, crop, crop, device=device), alpha)
