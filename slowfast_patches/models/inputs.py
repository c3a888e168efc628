"""From the loader's uint8 clips to the model's list of pathways, on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.models.solver import half_type, is_mixed

__all__ = [
    "InputTransform",
    "blank_head_inputs",
    "blank_inputs",
    "count_boxes",
    "head_inputs",
    "pack_pathways",
    "part_of",
]

_OF_CLIPS = ("clips", "flips", "videos")
_OF_BOXES = ("labels", "boxes", "rows", "shares")


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


@dataclass(frozen=True)
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
    def of_recipe(cls, recipe: Recipe, device: torch.device) -> InputTransform:
        # The config has them in the order R, G, B, whatever the model is fed.
        order = -1 if recipe.data.reverse_input_channel else 1
        return cls(
            mean=torch.tensor(recipe.data.mean[::order], device=device),
            std=torch.tensor(recipe.data.std[::order], device=device),
            alpha=recipe.slowfast.alpha if recipe.model.has_two_pathways else None,
            reverse_channels=recipe.data.reverse_input_channel,
            device=device,
            # Every model begins with a convolution, whose input autocast would round to this.
            dtype=half_type(device) if is_mixed(recipe) else torch.float32,
            channels_last=recipe.model.channels_last,
        )

    def __call__(self, clips: Tensor, flips: Tensor) -> list[Tensor]:
        """Pathways (N, 3, T, H, W) of clips (N, T, H, W, 3) uint8 and flips (N,) bool, on the CPU.

        Clips cross to a GPU as bytes; from pinned memory the copy does not wait.
        """
        assert clips.device.type == flips.device.type == "cpu", (clips.device, flips.device)
        clips = clips.to(self.device, non_blocking=True)
        n, t, h, w, channels = clips.shape
        layout = torch.channels_last_3d if self.channels_last else torch.contiguous_format
        shape = (n, channels, t, h, w)
        every = torch.empty(shape, dtype=self.dtype, device=self.device, memory_format=layout)
        mean = self.mean.view(-1, 1, 1, 1)
        std = self.std.view(-1, 1, 1, 1)
        # Clip by clip: a processor's cache holds most of one.
        for clip, flip, out in zip(clips, flips.tolist(), every, strict=True):
            axes = [2] * flip + [3] * self.reverse_channels
            source = (clip.flip(axes) if axes else clip).permute(3, 0, 1, 2)
            pixels = out if out.dtype == mean.dtype else torch.empty_like(out, dtype=mean.dtype)
            pixels.copy_(source).div_(255).sub_(mean).div_(std)
            if pixels is not out:
                out.copy_(pixels)
        return pack_pathways(every, self.alpha)

    def of_pixels(self, clips: Tensor) -> list[Tensor]:
        """The same pathways of clips (N, 3, T, H, W) uint8 on `device`, by operations on the whole
        mini-batch, which torch.export can follow."""
        order = [2, 1, 0] if self.reverse_channels else [0, 1, 2]
        mean = self.mean.view(-1, 1, 1, 1)
        std = self.std.view(-1, 1, 1, 1)
        pixels = clips[:, order].to(mean.dtype).div(255).sub(mean).div(std)
        return pack_pathways(pixels.to(self.dtype), self.alpha)


def blank_inputs(shape: Sequence[int], alpha: int | None, device: str = "meta") -> list[Tensor]:
    """Pathways of zeros for (clips, frames, crop), to try a shape on a model."""
    clips, frames, crop = shape
    return pack_pathways(torch.zeros(clips, 3, frames, crop, crop, device=device), alpha)


def blank_head_inputs(recipe: Recipe, clips: int, crop: int) -> tuple[Tensor, ...]:
    """What a head takes beside such pathways: for boxes, one of each whole clip, (clips, 5)."""
    if not recipe.detection.enable:
        return ()
    return (torch.tensor([[float(clip), 0, 0, crop, crop] for clip in range(clips)], device="cpu"),)


def head_inputs(batch: Mapping[str, Any], device: torch.device) -> tuple[Tensor, ...]:
    """What a model's head takes beside the pathways of a mini-batch: its boxes, if it has any."""
    if "boxes" not in batch:
        return ()
    return (batch["boxes"].to(device, non_blocking=True),)


def count_boxes(batch: Mapping[str, Any]) -> list[int] | None:
    """The number of each clip's boxes; None of a mini-batch without."""
    if "boxes" not in batch:
        return None
    counts: list[int]
    counts = batch["boxes"][:, 0].long().bincount(minlength=len(batch["clips"])).tolist()
    return counts


def part_of(batch: Mapping[str, Any], clips: slice) -> dict[str, Tensor]:
    """The tensors of some clips of a mini-batch; boxes have the clips' places in this part."""
    part = {name: batch[name][clips] for name in _OF_CLIPS if name in batch}
    if "boxes" not in batch:
        return part | {"labels": batch["labels"][clips]}
    count = len(batch["clips"])
    chosen = torch.arange(count)[clips]
    places = torch.full((count,), -1)
    places[chosen] = torch.arange(len(chosen))
    of_boxes = places[batch["boxes"][:, 0].long()]
    inside = of_boxes >= 0
    part |= {name: batch[name][inside] for name in _OF_BOXES if name in batch}
    part["boxes"][:, 0] = of_boxes[inside].float()
    return part
