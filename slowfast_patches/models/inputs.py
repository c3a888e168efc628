"""From the loader's uint8 clips to the model's list of pathways, on the device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.models.solver import half_type, is_mixed

__all__ = ["Form", "InputTransform", "blank_inputs", "pack_pathways", "side_stream"]

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


class SideStream:
    """A stream of a GPU in which mini-batches are prepared while the one before is trained on.

    A step of training is only queued when it returns. What is called for the next mini-batch is
    therefore done beside it, and the step after waits on the device, not here.

    The host is held back so that two mini-batches are on the device at most: the one that is
    trained on, and the one that is prepared. This bounds its memory, and the pinned memory of the
    mini-batches that are not copied yet. All that prepare mini-batches for a device share one
    stream, `side_stream`: memory that one of them has used is kept for it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # Of high priority: a few blocks of threads go before those of the step, which has many.
        self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._queued: torch.cuda.Event | None = None

    def __call__(self, prepare: Callable[[], list[Tensor]]) -> list[Tensor]:
        """What `prepare` returns, for use in the current stream; it is called in the side stream,
        which nothing that it reads on the device must still be written for in another."""
        current = torch.cuda.current_stream(self._device)
        self._hold_back(current)
        with torch.cuda.stream(self._stream):
            prepared = prepare()
        current.wait_stream(self._stream)
        for tensor in prepared:
            # Its memory is the side stream's, which must not use it again before this one is done.
            tensor.record_stream(current)
        return prepared

    def _hold_back(self, current: torch.cuda.Stream) -> None:
        """Return when all is done that was queued in `current` before the call before this."""
        before = self._queued
        # A process that waits for this kind of event leaves its core to the workers that read.
        self._queued = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self._queued.record(current)
        if before is not None:
            before.synchronize()


@cache
def side_stream(device: torch.device) -> SideStream:
    """The side stream of a GPU, whose number `device` has."""
    return SideStream(device)


class Form(NamedTuple):
    """How pathways are made: the frames of a first one, ascending, None where there is one only;
    whether channels are in the reverse order of the clips'; type and memory format."""

    slow_frames: tuple[int, ...] | None
    reverse_channels: bool
    dtype: torch.dtype
    memory_format: torch.memory_format


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

        On a GPU it is queued beside what the device computes, see `SideStream`; from pinned memory
        it waits for nothing else.
        """
        assert clips.device.type == flips.device.type == "cpu", (clips.device, flips.device)
        form = self._form(clips.shape[1])
        if self.device.type != "cuda":
            return self._in_passes(clips, flips, form)
        return side_stream(self.device)(lambda: self._on_gpu(clips, flips, form))

    def _form(self, frames: int) -> Form:
        """That of the pathways of clips of so many frames."""
        return Form(
            None if self.alpha is None else _slow_frames(frames, self.alpha),
            self.reverse_channels,
            self.dtype,
            torch.channels_last_3d if self.channels_last else torch.contiguous_format,
        )

    def _on_gpu(self, clips: Tensor, flips: Tensor, form: Form) -> list[Tensor]:
        kernel = _working_kernel(self.device, form._replace(slow_frames=form.slow_frames and (0,)))
        # The allocator of pinned memory notes which stream a copy that waits for nothing is queued
        # in, this one, and gives the memory to nobody else before the copy is done. From other
        # memory, the driver has taken the bytes when the call returns.
        there = clips.to(self.device, non_blocking=True)
        if kernel is None:
            return self._in_passes(there, flips, form)
        flips = flips.to(self.device, non_blocking=True)
        return kernel(there, flips, self.mean, self.std, form)

    def _in_passes(self, clips: Tensor, flips: Tensor, form: Form) -> list[Tensor]:
        """Without the kernel: clip by clip, which a processor's cache holds most of."""
        n, t, h, w, channels = clips.shape
        shape, device = (n, channels, t, h, w), clips.device
        every = torch.empty(
            shape, dtype=form.dtype, device=device, memory_format=form.memory_format
        )
        mean, std = self.mean.view(-1, 1, 1, 1), self.std.view(-1, 1, 1, 1)
        for clip, flip, out in zip(clips, flips.tolist(), every, strict=True):
            axes = [2] * flip + [3] * form.reverse_channels
            source = (clip.flip(axes) if axes else clip).permute(3, 0, 1, 2)
            pixels = out if out.dtype == mean.dtype else torch.empty_like(out, dtype=mean.dtype)
            pixels.copy_(source).div_(255).sub_(mean).div_(std)
            if pixels is not out:
                out.copy_(pixels)
        return pack_pathways(every, self.alpha)


def blank_inputs(shape: Sequence[int], alpha: int | None, device: str = "meta") -> list[Tensor]:
    """Pathways of zeros for (clips, frames, crop), to try a shape on a model."""
    clips, frames, crop = shape
    return pack_pathways(torch.zeros(clips, 3, frames, crop, crop, device=device), alpha)


_Kernel = Callable[[Tensor, Tensor, Tensor, Tensor, Form], list[Tensor]]


@cache
def _working_kernel(device: torch.device, form: Form) -> _Kernel | None:
    """The GPU's kernel, tried on a clip of one pixel; None, with a warning, where it cannot be.

    It is compiled for the form then, and never again: no number of a shape is compiled in.
    """
    try:
        from slowfast_patches.models.input_kernel import normalise

        clip = torch.zeros((1, 1, 1, 1, 3), dtype=torch.uint8, device=device)
        flip = torch.zeros(1, dtype=torch.bool, device=device)
        ones = torch.ones(3, device=device)
        normalise(clip, flip, ones, ones, form)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        logger.warning(
            "clips are prepared in several passes on the GPU, not in one: Triton, which comes with "
            "torch for CUDA and needs a C compiler, does not work here (%s)",
            error,
        )
        return None
    return normalise
