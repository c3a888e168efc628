"""Data set of clips that are cut from the frames of another data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import Dataset

from multigrid.cycles import GENTLE
from multigrid.errors import MultigridError
from multigrid.grids import SamplingOptions, make_grid
from multigrid.sampling import ClipPlan, Video, clip_generator, plan_test, plan_train
from multigrid.shapes import ClipRequest, Shape


class FrameClips(Dataset[dict[str, Any]]):
    """Clips of a data set whose items are (frames, label), such as videos in memory.

        clips = FrameClips(dataset, base, sampling=multigrid.GENTLE.sampling)
        schedule = multigrid.make_schedule(base, len(clips), rate, multigrid.GENTLE)
        loader = multigrid.Training(schedule, model, optimizer).loader(clips)

    This loader requests clips by `ClipRequest`, and gets random clips of the requested shape. For
    validation, index the data set with integers, and pass `collate_fn=multigrid.collate` to the
    DataLoader. Item i is then the centre clip of video i at the baseline's shape.

    Args:
        dataset: A data set with a length. The frames of an item are (T, H, W, 3) or (T, 3, H, W)
            uint8, as an array, a tensor or a list of images. The label is a class index or a
            multi-hot vector, (classes,) float32.
        base: The shape of the baseline, as in the schedule.
        stride: Distance between consecutive frames of a clip.
        short_sides: Minimum and maximum of the short side in pixels to which frames are resized
            before the crop. By default (256, 320), scaled by `base.crop` / 224.
        seed: Seed of the random clips.
        sampling: How clips are cut from the frames, usually the `sampling` of the schedule's
            cycles.

    Raises:
        ValueError: The data set has no length, or an item is not (frames, label). The latter is
            raised when the item is read.
    """

    def __init__(
        self,
        dataset: Any,
        base: Shape,
        *,
        stride: int = 1,
        short_sides: tuple[int, int] | None = None,
        seed: int = 0,
        sampling: SamplingOptions = GENTLE.sampling,
    ) -> None:
        if not hasattr(dataset, "__len__"):
            raise MultigridError(
                f"{type(dataset).__name__} has no length. FrameClips needs a data set that is "
                "indexed from 0 to its length"
            )
        if short_sides is None:
            short_sides = (round(base.crop * 256 / 224), round(base.crop * 320 / 224))
        if stride < 1 or not base.crop <= short_sides[0] <= short_sides[1]:
            raise MultigridError(
                f"stride is {stride} and short_sides {short_sides}, but stride must be 1 or more, "
                f"and short_sides an ascending pair of at least {base.crop} (the crop)"
            )
        self.dataset = dataset
        self.base = base
        self.stride = stride
        self.short_sides = short_sides
        self.seed = seed
        self.sampling = sampling

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, request: ClipRequest | int) -> dict[str, Any]:
        number = request if isinstance(request, int) else request.video
        frames, label = self._read(number)
        shape = frames[0].shape
        height, width = (shape[0], shape[1]) if shape[-1] == 3 else (shape[1], shape[2])
        video = Video(len(frames), 0.0, width, height)
        if isinstance(request, int):
            plan = plan_test(
                video,
                frames=self.base.frames,
                stride=self.stride,
                crop=self.base.crop,
                target_fps=0.0,
                short_side=self.short_sides[0],
                options=self.sampling,
            )
        else:
            grid = make_grid(request.shape, self.base, self.stride, self.short_sides, self.sampling)
            rng = clip_generator(self.seed, request.epoch, request.video)
            plan = plan_train(rng, grid, video, 0.0)
        return {
            "clip": _cut(frames, plan),
            "label": label,
            "flip": plan.flip,
            "iteration": -1 if isinstance(request, int) else request.iteration,
            "coverage": plan.coverage,
        }

    def _read(self, number: int) -> tuple[Any, Any]:
        """Read an item of the data set, and check it.

        Raises:
            ValueError: The item is not (frames, label).
        """
        item = self.dataset[number]
        is_pair = isinstance(item, Sequence) and len(item) == 2
        frames, label = item if is_pair else (None, None)
        if isinstance(frames, (list, tuple)):
            frames = [np.asarray(frame) for frame in frames]
        first = frames[0] if frames is not None and len(frames) else None
        shape: tuple[int, ...] = tuple(getattr(first, "shape", ()))
        is_image = len(shape) == 3 and 3 in (shape[0], shape[-1])
        if not is_image or "uint8" not in str(getattr(first, "dtype", "")):
            found = (
                f"frames of {shape} {getattr(first, 'dtype', '')}" if is_pair else repr(item)[:80]
            )
            raise MultigridError(
                f"item {number} of {type(self.dataset).__name__} must be (frames, label), with "
                f"frames (T, H, W, 3) or (T, 3, H, W) uint8, but it has {found}. Return frames "
                "before they are normalised. For (path, label), use "
                "slowfast_patches.datasets.VideoClips"
            )
        return frames, label


def _cut(frames: Any, plan: ClipPlan) -> NDArray[np.uint8]:
    """Return the frames and the crop of a plan, (T, crop, crop, 3)."""
    chosen = [torch.as_tensor(np.asarray(frames[int(i)])) for i in plan.frame_indices]
    images: Tensor = torch.stack(chosen)
    if images.shape[-1] == 3:
        images = images.permute(0, 3, 1, 2)
    width, height = plan.size
    if images.shape[2:] != (height, width):
        images = interpolate(images, (height, width), mode="bilinear", antialias=True)
    (x, y), crop = plan.corner, plan.crop
    clip: NDArray[np.uint8] = images[:, :, y : y + crop, x : x + crop].permute(0, 2, 3, 1).numpy()
    return np.ascontiguousarray(clip)
