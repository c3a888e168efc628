"""Conversion of uint8 clips from the data loader to the model's list of pathways on the device."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch
from torch import Tensor

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.models.solver import half_type, is_mixed

_ALIGNMENT = 16
"""Bytes to which the tensors of `pack` are aligned."""


def pack_pathways(clips: Tensor, alpha: int | None) -> list[Tensor]:
    """Convert a batch of clips to a list of pathways, the input of a model.

    Args:
        clips: Clips (N, C, T, H, W).
        alpha: Number of frames in the fast pathway for each frame in the slow pathway. None for a
            model with a single pathway.

    Returns:
        [clips] for a single pathway, else [slow, fast]. The slow pathway has T / `alpha` evenly
        spaced frames, including the first and the last frame, as in PySlowFast. Both pathways have
        the memory format of `clips`.
    """
    if alpha is None:
        return [clips]
    # Do not use `index_select`, which makes a GPU wait for a copy of the indices.
    slow = [clips[:, :, frame : frame + 1] for frame in _slow_frames(clips.shape[2], alpha)]
    return [torch.cat(slow, 2), clips]


@cache
def _slow_frames(frames: int, alpha: int) -> tuple[int, ...]:
    """Return the indices of the frames that the slow pathway takes from `frames` frames."""
    indices = torch.linspace(0, frames - 1, frames // alpha, device="cpu")
    return tuple(indices.long().tolist())


@dataclass(frozen=True)
class InputTransform:
    """Transform that copies clips to a device, flips and normalises them, and returns pathways.

    A pixel u becomes (u / 255 - mean) / std, computed in float32 and then rounded to `dtype`.

    Args:
        mean: Mean of each input channel of the model, (3, 1, 1, 1), for pixels in [0, 1].
        std: Standard deviation of each input channel of the model, (3, 1, 1, 1).
        alpha: See `pack_pathways`.
        reverse_channels: Reverse the channels of the clips from RGB to BGR.
        device: Device of the model.
        dtype: Data type of the pathways.
        channels_last: Return pathways in the memory format channels_last_3d.
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
        """Build the transform for the model of a recipe."""
        # DATA.MEAN and DATA.STD are in the order R, G, B, even if the model's input is BGR.
        order = -1 if recipe.data.reverse_input_channel else 1
        return cls(
            mean=torch.tensor(recipe.data.mean[::order], device=device).view(-1, 1, 1, 1),
            std=torch.tensor(recipe.data.std[::order], device=device).view(-1, 1, 1, 1),
            alpha=recipe.slowfast.alpha if recipe.model.has_two_pathways else None,
            reverse_channels=recipe.data.reverse_input_channel,
            device=device,
            # Autocast would convert the input of the first convolution to this type anyway.
            dtype=half_type(device) if is_mixed(recipe) else torch.float32,
            channels_last=recipe.model.channels_last,
        )

    def __call__(self, clips: Tensor, flips: Tensor) -> list[Tensor]:
        """Convert clips on the CPU to pathways on the device.

        Clips are copied to a GPU as uint8. The copy is asynchronous if the clips are in pinned
        memory.

        Args:
            clips: Clips (N, T, H, W, 3) uint8 on the CPU.
            flips: Whether to flip each clip horizontally, (N,) bool. On the CPU, it is first
                checked whether there is any clip to flip.

        Returns:
            List of pathways (N, 3, T, H, W) on the device.
        """
        assert clips.device.type == "cpu", clips.device
        clips = clips.to(self.device, non_blocking=True)
        n, t, h, w, channels = clips.shape
        layout = torch.channels_last_3d if self.channels_last else torch.contiguous_format
        shape = (n, channels, t, h, w)
        frames = torch.empty(shape, dtype=self.dtype, device=self.device, memory_format=layout)
        # A CPU converts clips one by one, up to 3 times as fast, as a clip fits into the cache.
        # A GPU converts all clips together, because launching a kernel takes longer than a clip.
        size = 1 if self.device.type == "cpu" else n
        for start in range(0, n, size):
            part = slice(start, start + size)
            self._convert(clips[part], flips[part], frames[part])
        return pack_pathways(frames, self.alpha)

    def _convert(self, clips: Tensor, flips: Tensor, out: Tensor) -> None:
        """Flip and normalise clips on the device, and write them to `out`, (N, 3, T, H, W)."""
        if flips.device.type != "cpu" or flips.numpy().any():
            flipped = flips.to(self.device, non_blocking=True).view(-1, 1, 1, 1, 1)
            clips = torch.where(flipped, clips.flip(3), clips)
        if self.reverse_channels:
            clips = clips.flip(4)
        single = out.dtype == torch.float32
        pixels = out if single else torch.empty_like(out, dtype=torch.float32)
        torch.div(clips.permute(0, 4, 1, 2, 3), self._white, out=pixels).sub_(self.mean)
        # A CPU divides faster in place.
        divided = pixels if self.device.type == "cpu" else out
        torch.div(pixels, self.std, out=divided)
        if divided is not out and not single:
            out.copy_(divided)

    def of_pixels(self, clips: Tensor) -> list[Tensor]:
        """Convert clips to pathways with operations that torch.export can trace.

        The values equal those of `__call__` without flips.

        Args:
            clips: Clips (N, 3, T, H, W) uint8 on the device.
        """
        clips = clips.flip(1) if self.reverse_channels else clips
        pixels = clips.float().div_(torch.full((), 255.0, device=clips.device))
        return pack_pathways(pixels.sub_(self.mean).div_(self.std).to(self.dtype), self.alpha)

    @cached_property
    def _white(self) -> Tensor:
        """The number 255 on the device.

        On a GPU, torch multiplies by the reciprocal of a Python number, which rounds differently.
        """
        return torch.full((), 255.0, device=self.device)


def blank_inputs(shape: Sequence[int], alpha: int | None) -> list[Tensor]:
    """Return pathways of zeros on the meta device for clips of a shape (clips, frames, crop)."""
    clips, frames, crop = shape
    return pack_pathways(torch.zeros(clips, 3, frames, crop, crop, device="meta"), alpha)


def send_together(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copy small tensors on the CPU to a device, in one copy.

    On a GPU, the copy is asynchronous. Tensors on another device, and all tensors for a CPU, are
    returned unchanged.
    """
    small = [tensor for tensor in tensors if tensor.device.type == "cpu"]
    if device.type == "cpu" or not small:
        return list(tensors)
    packed = pack(small, pin_memory=device.type == "cuda")
    sent = iter(unpack(packed.to(device, non_blocking=True), small))
    return [next(sent) if tensor.device.type == "cpu" else tensor for tensor in tensors]


def pack(tensors: Sequence[Tensor], *, pin_memory: bool = False) -> Tensor:
    """Copy the bytes of tensors on the CPU to one tensor."""
    starts = _starts(tensors)
    packed = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=pin_memory)
    values = packed.numpy()
    for tensor, start in zip(tensors, starts, strict=False):
        part = np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8)
        values[start : start + len(part)] = part
    return packed


def unpack(packed: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return views of the tensors in the result of `pack`, which had the types of `like`."""
    return [
        packed[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for tensor, start in zip(like, _starts(like), strict=False)
    ]


def _starts(tensors: Sequence[Tensor]) -> list[int]:
    """Return the offset of each tensor in the result of `pack`, and the size of the result."""
    sizes = [-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in tensors]
    return [0, *itertools.accumulate(sizes)]
