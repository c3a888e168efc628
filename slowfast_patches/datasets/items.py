"""Base class of the data sets. Clips are indexed by `ClipRequest` or by integer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from multigrid import (
    Batch,
    ClipPlan,
    ClipRequest,
    Grid,
    SamplingOptions,
    Shape,
    Video,
    Window,
    clip_generator,
    empty_clips,
    make_grid,
    plan_test,
    plan_train,
)
from multigrid.sampler import stack_labels
from slowfast_patches.datasets.reading.index import VideoIndex
from slowfast_patches.datasets.reading.reader import READER, ClipReader
from slowfast_patches.datasets.reading.scanned_video import ScannedVideo
from slowfast_patches.datasets.reading.unreadable import UnreadableVideoError
from slowfast_patches.utils.errors import RunError

Label = int | NDArray[np.float32]
"""A class index, a multi-hot vector (classes,) in multi-label data sets, or an array that the task
of the data set understands. The arrays of all clips have the same shape."""

Draw = Callable[..., ClipPlan]
"""Function (centre) that draws the plan of a clip. `centre` is the position of the frame in the
middle of the clip. By default, the training draws a random position."""

TRIES = 10
"""Number of consecutive unreadable videos after which reading is given up.

So many unreadable videos in a row mean that the list or the prefix of the paths is wrong.
"""


class _WholeBatch(dict[Any, Any]):
    """Mini-batch that raises a clear error if it is passed to torch's default collate function.

    The default collate function would otherwise treat the mini-batch as a list of items.
    """

    def __getitem__(self, key: object) -> Any:
        if key == 0:  # torch's default collate function asks for the first item of a list
            raise ValueError(
                "The data set returns whole mini-batches. Pass collate_fn=multigrid.collate to the "
                "DataLoader"
            )
        return super().__getitem__(key)


class VideoBatch(Batch):
    """Mini-batch of clips that also tells which videos the clips are from.

    Attributes:
        videos: (n,) int64. Index of each clip's video in the list.
        redrawn: Number of clips that were drawn again (see `Clips._aim`), for the training log.
    """

    videos: Tensor
    redrawn: int


class Shown(NamedTuple):
    """Part of a video that a clip shows.

    Attributes:
        frames: Number of video frames from the first to the last frame of the clip.
        window: The crop, in the coordinates of the video.
        video: The video.
    """

    frames: int
    window: Window
    video: Video

    @classmethod
    def of_plan(cls, plan: ClipPlan, video: Video) -> Shown:
        """Return the part of a video that the clip with this plan shows."""
        return cls(int(plan.positions[-1] - plan.positions[0]) + 1, plan.window(video), video)


@dataclass(frozen=True)
class Sampling:
    """Settings that determine which frames and crops of a video make up a clip.

    Attributes:
        base: The shape of the baseline.
        stride: Distance between consecutive frames of a clip, in frames of a video with
            `target_fps` frames per second.
        short_sides: Minimum and maximum of the short side in pixels to which frames are resized.
        options: Further options, see `multigrid.SamplingOptions`.
        target_fps: Frame rate to which `stride` refers, see `multigrid.plan_train`.
        to_end: Whether the last of several views ends with the video, see `multigrid.plan_test`.
    """

    base: Shape
    stride: int
    short_sides: tuple[int, int]
    options: SamplingOptions
    target_fps: float = 30.0
    to_end: bool = False

    @property
    def step(self) -> float:
        """Seconds between the frames of a baseline clip. 0 if this depends on the video."""
        if self.options.segments or not self.target_fps:
            return 0.0
        return self.stride / self.target_fps

    def training_plan(
        self,
        rng: np.random.Generator,
        shape: Shape,
        video: Video,
        centre: float | None = None,
    ) -> ClipPlan:
        """Return the plan of a random clip with the given shape.

        Args:
            rng: The random generator.
            shape: The shape of the clip.
            video: The video.
            centre: Position of the key frame in the middle of the clip. By default the temporal
                position is random.
        """
        return plan_train(rng, _grid(self, shape), video, self.target_fps, centre=centre)

    def evaluation_short_side(self, crop: int, crops: int) -> int:
        """Return the short side of resized frames in evaluation, in pixels.

        Args:
            crop: Side of the crop in pixels.
            crops: Number of spatial crops.
        """
        return max(crop, self.short_sides[0]) if crops == 1 else crop

    def evaluation_plan(
        self,
        video: Video,
        part: int,
        views: tuple[int, int],
        crop: int,
        centre: float | None = None,
    ) -> ClipPlan:
        """Return the plan of one evaluation clip of a video.

        A video has (temporal views × spatial crops) evaluation clips. With one spatial crop, the
        crop is the centre of the frame, which is resized to the smallest short side in training.
        With three spatial crops, and for clips around a key frame, the frame is resized so that its
        short side equals the side of the crop.

        Args:
            video: The video.
            part: Index of the clip among the evaluation clips of the video.
            views: The number of temporal views and the number of spatial crops.
            crop: Side of the crop in pixels.
            centre: Position of the key frame in the middle of the clip, or None.
        """
        count, crops = views
        return plan_test(
            video,
            frames=self.base.frames,
            stride=self.stride,
            crop=crop,
            view=(part // crops, count),
            spatial=(part % crops, crops),
            target_fps=self.target_fps,
            short_side=crop if centre is not None else self.evaluation_short_side(crop, crops),
            options=self.options,
            to_end=self.to_end,
            centre=centre,
        )


@cache
def _grid(sampling: Sampling, shape: Shape) -> Grid:
    """Return the grid of a shape. The result is cached because every clip needs a grid."""
    return make_grid(shape, sampling.base, sampling.stride, sampling.short_sides, sampling.options)


class Clips(torch.utils.data.Dataset[dict[str, Any]]):
    """Data set of clips that are read in the requested shape.

    Index training clips by `ClipRequest`, which contains the shape. Index evaluation clips by
    integer. Each video has (temporal views × spatial crops) evaluation clips with the shape of the
    baseline. The clips of one video are consecutive. If there is only one clip per video, it is
    the centre clip.

    A DataLoader fetches a whole mini-batch with one call of `__getitems__`, which reads each clip
    directly into the tensor of the mini-batch. A mini-batch in evaluation omits unreadable clips.

    An item is a dict:

    - `clip`: (T, S, S, 3) uint8 RGB.
    - `label`: See `Label`. Missing for an unread clip.
    - `flip`: Whether to flip the clip horizontally.
    - `iteration`: The iteration of the request, or -1 in evaluation.
    - `video`: Index of the video in the list.
    - `failures`: The (path, reason) of each unreadable video that this clip replaces. The request
      determines the replacement, so it does not depend on the worker.
    - `unread`: True for an unreadable evaluation clip, and otherwise missing.
    - `coverage`: Only in training, see `ClipPlan`.
    - `shown`: The part of the video that the clip shows (`Shown`). Missing for an unread clip.

    Args:
        videos: The listed videos, each with a `path` and a `label`.
        index: The index of the videos, or None if the subclass overrides `_scanned`.
        sampling: How clips are sampled from the videos.
        seed: Seed of the random clips.
        views: Number of temporal views and of spatial crops per video in evaluation.
        evaluation_crop: Side of an evaluation clip in pixels. By default the crop of the baseline.
        reader: Reads the clips, within limits on the videos.
        augment: Function that changes a training clip in place. Its arguments are the clip, the
            epoch and the index of the video.
    """

    def __init__(
        self,
        videos: Sequence[Any],
        index: VideoIndex | None,
        sampling: Sampling,
        *,
        seed: int,
        views: tuple[int, int] = (1, 1),
        evaluation_crop: int | None = None,
        reader: ClipReader = READER,
        augment: Callable[[NDArray[np.uint8], int, int], None] | None = None,
    ) -> None:
        self.videos = videos
        self.index = index
        self.sampling = sampling
        self._seed = seed
        self._views = views
        self._crop = sampling.base.crop if evaluation_crop is None else evaluation_crop
        self._augment = augment
        self._reader = reader

    def _label(self, video: Any, plan: ClipPlan) -> Label:
        """Return the label of a clip with this plan."""
        label: Label = video.label
        return label

    def _aim(self, number: int, video: Video, draw: Draw) -> tuple[ClipPlan, dict[str, Any]]:
        """Return the plan of a clip and the fields of its item that depend on the task.

        These are the `label`, and optionally `redrawn`, the number of rejected plans. Subclasses
        may override this method to draw a clip again until it shows a target.
        """
        plan = draw()
        return plan, {"label": self._label(self.videos[number], plan)}

    def _scanned(self, number: int) -> ScannedVideo:
        """Return a video as it was scanned.

        Raises:
            UnreadableVideoError: The video could not be scanned.
        """
        assert self.index is not None
        return self.index[number]

    def __len__(self) -> int:
        return len(self.videos) * self.num_clips

    @property
    def num_clips(self) -> int:
        """Number of evaluation clips per video."""
        return self._views[0] * self._views[1]

    @property
    def clip_bytes(self) -> int:
        """Size of an evaluation clip in bytes."""
        frames, crop = self._sides(0)
        return frames * crop**2 * 3

    def __getitem__(self, request: ClipRequest | int) -> dict[str, Any]:
        clip = empty_clips(1, *self._sides(request))[0].numpy()
        (item,) = self._read([request], [clip])
        return {"clip": clip, **item}

    def __getitems__(self, requests: Sequence[ClipRequest | int]) -> VideoBatch:
        """Return the mini-batch for several requests, which must all have the same shape."""
        clips = empty_clips(len(requests), *self._sides(requests[0]))
        items = self._read(requests, [clip.numpy() for clip in clips])
        numbers = [number for number, item in enumerate(items) if not item.get("unread")]
        read = [items[number] for number in numbers]
        batch = VideoBatch(
            clips=clips if len(read) == len(items) else clips[numbers],
            labels=stack_labels(read),
            flips=torch.tensor([item["flip"] for item in read], dtype=torch.bool),
            iteration=items[0]["iteration"],
            failures=[failure for item in items for failure in item["failures"]],
            videos=torch.tensor([item["video"] for item in read], dtype=torch.int64),
            redrawn=sum(item.get("redrawn", 0) for item in read),
        )
        batch = cast(VideoBatch, _WholeBatch(batch))
        if "coverage" in items[0]:
            batch["coverage"] = torch.tensor([item["coverage"] for item in items])
        return batch

    def _sides(self, request: ClipRequest | int) -> tuple[int, int]:
        """Return the number of frames of a clip and the side of its crop in pixels."""
        if isinstance(request, ClipRequest):
            return request.shape.frames, request.shape.crop
        return self.sampling.base.frames, self._crop

    def _read(
        self, requests: Sequence[ClipRequest | int], outs: Sequence[NDArray[np.uint8]]
    ) -> list[dict[str, Any]]:
        """Read one clip per request into `outs`, and return the items without the field `clip`.

        Read consecutive evaluation clips of one video in one pass.
        """
        both: Any = list(zip(requests, outs, strict=True))
        if isinstance(requests[0], ClipRequest):
            return [self._read_training(request, out) for request, out in both]
        items = list[dict[str, Any]]()
        for video, clips in groupby(both, lambda clip: clip[0] // self.num_clips):
            parts = [(number % self.num_clips, out) for number, out in clips]
            items += self._read_evaluation(video, parts)
        return items

    def _read_training(self, request: ClipRequest, out: NDArray[np.uint8]) -> dict[str, Any]:
        """Read a random clip into `out`, and return its item without the field `clip`.

        If the video is unreadable, use a randomly drawn other video.
        """
        rng = clip_generator(self._seed, request.epoch, request.video)
        failures = list[tuple[str, str]]()
        index = request.video
        while len(failures) < TRIES:
            video = self.videos[index]
            try:
                scanned = self._scanned(index)
                draw = partial(self.sampling.training_plan, rng, request.shape, scanned.video)
                plan, targets = self._aim(index, scanned.video, draw)
                self._reader.read_clip(video.path, scanned, plan, out)
            except UnreadableVideoError as error:
                failures.append((video.path, str(error)))
                index = int(rng.integers(len(self.videos)))
                continue
            if self._augment is not None:
                self._augment(out, request.epoch, request.video)
            return targets | {
                "flip": plan.flip,
                "video": index,
                "iteration": request.iteration,
                "coverage": plan.coverage,
                "shown": Shown.of_plan(plan, scanned.video),
                "failures": failures,
            }
        raise self._too_many(failures)

    def _evaluation_draw(self, video: Video, part: int) -> Draw:
        plan = self.sampling.evaluation_plan
        return lambda centre=None: plan(video, part, self._views, self._crop, centre)

    def _too_many(self, failures: Sequence[tuple[str, str]]) -> RunError:
        path, reason = failures[0]
        return RunError(
            f"{len(failures)} videos in a row could not be read. The first is {path}: {reason}. "
            "Check the list, and the prefix of its paths (DATA.PATH_PREFIX)"
        )

    def _read_evaluation(
        self, index: int, parts: Sequence[tuple[int, NDArray[np.uint8]]]
    ) -> list[dict[str, Any]]:
        """Read evaluation clips of a video, and return their items without the field `clip`.

        Fill unreadable clips with zeros.

        Args:
            index: Index of the video in the list.
            parts: The index of each clip among the clips of the video, and its output array.
        """
        video = self.videos[index]
        item = {"flip": False, "video": index, "iteration": -1}
        try:
            scanned = self._scanned(index)
            looks = [
                self._aim(index, scanned.video, self._evaluation_draw(scanned.video, part))
                for part, _ in parts
            ]
            plans = [plan for plan, _ in looks]
            self._reader.read_clips(video.path, scanned, plans, [out for _, out in parts])
        except UnreadableVideoError as error:
            if len(parts) > 1:  # retry the clips one by one, because some may be readable
                return [clip for part in parts for clip in self._read_evaluation(index, [part])]
            parts[0][1][:] = 0
            return [item | {"failures": [(video.path, str(error))], "unread": True}]
        return [
            item | targets | {"failures": [], "shown": Shown.of_plan(plan, scanned.video)}
            for plan, targets in looks
        ]
