"""The GPU's kernel that makes pathways of uint8 clips in one pass.

Import it where a CUDA tensor is at hand: it needs Triton, which comes with torch's CUDA builds.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from slowfast_patches.models.inputs import Form

__all__ = ["normalise"]

_BLOCK = 512
"""Pixels of a frame to a program."""


def normalise(clips: Tensor, flips: Tensor, mean: Tensor, std: Tensor, form: Form) -> list[Tensor]:
    """Pathways (N, 3, T, H, W), (u / 255 - mean) / std, of clips (N, T, H, W, 3) uint8.

    They are computed in float32 and rounded once. It is queued in the current stream, and waits for
    nothing.

    Args:
        clips: contiguous.
        flips: (N,) bool: which clips to mirror from left to right.
        mean: (3,) float32 of the channels of the result, of pixels in [0, 1]; so is `std`.
        form: of the result.
    """
    n, t, h, w, channels = clips.shape
    assert channels == 3, clips.shape
    assert clips.is_contiguous(), clips.stride()

    def room(frames: int) -> Tensor:
        shape = (n, channels, frames, h, w)
        return torch.empty(
            shape, dtype=form.dtype, device=clips.device, memory_format=form.memory_format
        )

    every = room(t)
    pathways, places = [every], None
    if form.slow_frames is not None:
        pathways.insert(0, room(len(form.slow_frames)))
        places = _places(form.slow_frames, t, clips.device)
    tensors = (clips, flips.view(torch.uint8), mean, std, places, every, pathways[0])
    _normalise[(n * t, triton.cdiv(h * w, _BLOCK))](
        *tensors,
        t,
        pathways[0].shape[2],
        h * w,
        w,
        PACK=places is not None,
        REVERSE=form.reverse_channels,
        CHANNELS_LAST=form.memory_format == torch.channels_last_3d,
        BLOCK=_BLOCK,
    )
    return pathways


@cache
def _places(slow_frames: tuple[int, ...], frames: int, device: torch.device) -> Tensor:
    """(T,) int32: where in the slow pathway each frame of a clip is, -1 where it is not."""
    places = torch.full((frames,), -1, dtype=torch.int32)
    places[list(slow_frames)] = torch.arange(len(slow_frames), dtype=torch.int32)
    if device.type == "cuda":
        places = places.pin_memory()
    return places.to(device, non_blocking=True)


# No number of a shape is compiled in: each shape would be compiled anew as the training meets it.
@triton.jit(do_not_specialize=["frames", "slow_frames", "pixels", "width"])  # type: ignore[untyped-decorator]
def _normalise(  # type: ignore[no-untyped-def]
    clips,
    flips,
    mean,
    std,
    places,
    every,
    slow,
    frames,
    slow_frames,
    pixels,
    width,
    PACK: tl.constexpr,  # noqa: N803
    REVERSE: tl.constexpr,  # noqa: N803
    CHANNELS_LAST: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Program (i, j): the j-th BLOCK pixels of the i-th frame of all clips, all channels."""
    # In 64 bits: there may be more than 2³¹ pixels.
    clip = tl.program_id(0).to(tl.int64) // frames
    frame = tl.program_id(0) % frames
    pixel = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[:, None]
    channel = tl.arange(0, 4)[None, :]
    inside = (pixel < pixels) & (channel < 3)
    mirrored = pixel + (width - 1 - 2 * (pixel % width))
    source = tl.where(tl.load(flips + clip) != 0, mirrored, pixel)
    taken = 2 - channel if REVERSE else channel
    start = clips + (clip * frames + frame) * pixels * 3
    values = tl.load(start + source * 3 + taken, mask=inside, other=0).to(tl.float32)
    # Divided as on the CPU, with one rounding each: the values are the same to the last bit.
    values = tl.div_rn(values, 255.0) - tl.load(mean + channel, mask=channel < 3, other=0.0)
    values = tl.div_rn(values, tl.load(std + channel, mask=channel < 3, other=1.0))
    values = values.to(every.dtype.element_ty)
    place = _place(clip, frame, frames, pixel, pixels, channel, CHANNELS_LAST)
    tl.store(every + place, values, mask=inside)
    if PACK:
        frame = tl.load(places + frame)
        place = _place(clip, frame, slow_frames, pixel, pixels, channel, CHANNELS_LAST)
        tl.store(slow + place, values, mask=inside & (frame >= 0))


@triton.jit  # type: ignore[untyped-decorator]
def _place(clip, frame, frames, pixel, pixels, channel, CHANNELS_LAST: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Where in a pathway a value is."""
    if CHANNELS_LAST:
        place = ((clip * frames + frame) * pixels + pixel) * 3 + channel
    else:
        place = ((clip * 3 + channel) * frames + frame) * pixels + pixel
    return place
