"""Base class of the data sets: clips of videos, indexed by `ClipRequest` or by number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any, NotRequired, cast

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
    clip_generator,
    empty_clips,
    make_grid,
    plan_test,
    plan_train,
)
from multigrid.sampler import stack_labels
from slowfast_patches.datasets.reading.clip_reader import read_clip, read_clips
from slowfast_patches.datasets.reading.index import VideoIndex
from slowfast_patches.datasets.reading.limits import LIMITS, ReadingLimits
from slowfast_patches.datasets.reading.video_record import UnreadableVideoError, VideoRecord
from slowfast_patches.utils.command_line import MISTAKE_STATUS, ToolError

Label = int | NDArray[np.float32]
"""A class number, or a multi-hot vector (classes,) for clips with several labels."""

TRIES = 10
"""Consecutive unreadable videos after which the list itself must be wrong."""


class _WholeBatch(dict[Any, Any]):
    """Mini-batch that rejects torch's default collate function, which takes it for a list."""

    def __getitem__(self, key: object) -> Any:
        if key == 0:  # the first item of a list, in torch's default collate function
            raise ValueError("this is a whole mini-batch: give collate_fn=multigrid.collate")
        return super().__getitem__(key)


class VideoBatch(Batch):
    """Mini-batch with the numbers of its videos in the list.

    Attributes:
        videos: The number of each clip's video, (n,).
        rows: With boxes: the number of each box among all boxes of the split, (m,).
        shares: With boxes: the fraction of each box that its clip shows, (m,). Used in evaluation.
        redrawn: With boxes: how many crops without a box were drawn again. Used in training.
    """

    videos: Tensor
    rows: NotRequired[Tensor]
    shares: NotRequired[Tensor]
    redrawn: NotRequired[int]


class TooManyUnreadableError(ToolError):
    """Error raised when so many videos are unreadable that the list or its prefix must be wrong."""

    exit_status = MISTAKE_STATUS

    def __init__(self, message: str) -> None:
        # The loader puts the worker's traceback before the message when it re-raises the error.
        super().__init__(message.rsplit("TooManyUnreadableError: ", 1)[-1].strip())


@dataclass(frozen=True)
class Sampling:
    """Where clips are taken from their videos.

    Attributes:
        base: The shape of the baseline.
        stride: Frames from one frame of a clip to the next, at `target_fps`.
        short_sides: Range of the resized short side, in pixels.
        options: The `multigrid.SamplingOptions`.
        target_fps: See `multigrid.plan_train`.
        to_end: See `multigrid.plan_test`.
    """

    base: Shape
    stride: int
    short_sides: tuple[int, int]
    options: SamplingOptions
    target_fps: float = 30.0
    to_end: bool = False

    def training_plan(
        self,
        rng: np.random.Generator,
        shape: Shape,
        video: Video,
        centre: float | None = None,
    ) -> ClipPlan:
        """Draw a random clip on the grid of `shape`, around the frame `centre` if given."""
        return plan_train(rng, _grid(self, shape), video, self.target_fps, centre=centre)

    def evaluation_plan(
        self,
        video: Video,
        part: int,
        views: tuple[int, int],
        crop: int,
        centre: float | None = None,
    ) -> ClipPlan:
        """Return the plan of one of the views × crops clips on which a video is scored.

        A single crop is the centre of a frame resized to the smallest training size. Three crops,
        and crops around a key frame, are cut from a frame whose short side equals the crop.

        Args:
            video: The video.
            part: The number of the clip among the clips of the video.
            views: Number of temporal views and of spatial crops.
            crop: Side of the crop.
            centre: Key frame in the middle of the clip, if any.
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
            short_side=max(crop, self.short_sides[0]) if crops == 1 and centre is None else crop,
            options=self.options,
            to_end=self.to_end,
            centre=centre,
        )


@cache
def _grid(sampling: Sampling, shape: Shape) -> Grid:
    """Return the grid of a shape. It is cached because every clip needs one."""
    return make_grid(shape, sampling.base, sampling.stride, sampling.short_sides, sampling.options)


class Clips(torch.utils.data.Dataset[dict[str, Any]]):
    """Clips of some videos, read on the requested grid.

    Training clips are requested by `ClipRequest`, which names the grid. Evaluation clips are
    requested by number. Each video has views × crops evaluation clips on the baseline's grid, one
    video after another. A single clip per video is the centre clip.

    The data loader requests a whole mini-batch at once, and each clip is read directly into its
    place. An evaluation batch omits unreadable clips.

    An item has `clip` (T, S, S, 3) uint8, `label`, `flip`, `iteration`, `video` (its number in the
    list) and `failures`, the (path, reason) of each unreadable video that was replaced. The request
    alone determines the replacement. An unreadable evaluation clip has `unread`. A training item
    also has `extents`, as in `ClipPlan`.

    Args:
        videos: The listed videos, each with a `path` and a `label`.
        index: Their index, or None if the subclass provides the records.
        sampling: Where clips are taken from the videos.
        seed: Seed of the random clips.
        views: Temporal views and spatial crops of each video in evaluation.
        evaluation_crop: Side of an evaluation clip. By default that of the baseline.
        threads: Decoder threads per clip.
        limits: Limits on what is read.
        augment: Changes a training clip in place, given the clip, the epoch and the video number.
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
        threads: int = 1,
        limits: ReadingLimits = LIMITS,
        augment: Callable[[NDArray[np.uint8], int, int], None] | None = None,
    ) -> None:
        self.videos = videos
        self.index = index
        self.sampling = sampling
        self._seed = seed
        self._views = views
        self._crop = sampling.base.crop if evaluation_crop is None else evaluation_crop
        self._augment = augment
        self._reading: dict[str, Any] = {"threads": threads, "limits": limits}

    def _label(self, video: Any, plan: ClipPlan | None) -> Label:
        """Return the label of a training clip with this plan.

        `plan` is None in evaluation, where all clips of a video have the same label.
        """
        label: Label = video.label
        return label

    def _draw(
        self, rng: np.random.Generator, shape: Shape, number: int, video: Video
    ) -> tuple[ClipPlan, dict[str, Any]]:
        """Draw a random clip of a video. Returns its plan and the targets of its item."""
        plan = self.sampling.training_plan(rng, shape, video)
        return plan, {"label": self._label(self.videos[number], plan)}

    def _look(self, number: int, video: Video, part: int) -> tuple[ClipPlan, dict[str, Any]]:
        """Return the plan and the targets of the `part`-th evaluation clip of a video."""
        plan = self.sampling.evaluation_plan(video, part, self._views, self._crop)
        return plan, {"label": self._label(self.videos[number], None)}

    def _record(self, number: int) -> VideoRecord:
        """Return the record of a video.

        Raises:
            UnreadableVideoError: The video could not be scanned.
        """
        assert self.index is not None
        return self.index.record(number)

    def __len__(self) -> int:
        return len(self.videos) * self.num_clips

    @property
    def num_clips(self) -> int:
        """Evaluation clips per video."""
        return self._views[0] * self._views[1]

    @property
    def clip_bytes(self) -> int:
        """Bytes of an evaluation clip."""
        frames, crop = self._sides(0)
        return frames * crop**2 * 3

    def __getitem__(self, request: ClipRequest | int) -> dict[str, Any]:
        clip = empty_clips(1, *self._sides(request))[0].numpy()
        (item,) = self._read([request], [clip])
        return {"clip": clip, **item}

    def __getitems__(self, requests: Sequence[ClipRequest | int]) -> VideoBatch:
        """Return the mini-batch of several requests, all of one shape."""
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
        )
        batch = cast(VideoBatch, _WholeBatch(batch))
        if "extents" in items[0]:
            batch["extents"] = torch.tensor([item["extents"] for item in items])
        if read:
            self._add_targets(batch, read)
        return batch

    def _add_targets(self, batch: VideoBatch, items: Sequence[dict[str, Any]]) -> None:
        """Add the targets that are not of whole clips."""

    def _sides(self, request: ClipRequest | int) -> tuple[int, int]:
        """Return the number of frames and the crop of a clip."""
        if isinstance(request, ClipRequest):
            return request.shape.frames, request.shape.crop
        return self.sampling.base.frames, self._crop

    def _read(
        self, requests: Sequence[ClipRequest | int], outs: Sequence[NDArray[np.uint8]]
    ) -> list[dict[str, Any]]:
        """Read clips into `outs`, and return their items without `clip`.

        Consecutive evaluation clips of one video are read in one pass.
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
        """Read a random clip. If the video is unreadable, draw another video."""
        rng = clip_generator(self._seed, request.epoch, request.video)
        failures = list[tuple[str, str]]()
        index = request.video
        while len(failures) < TRIES:
            video = self.videos[index]
            try:
                record = self._record(index)
                plan, targets = self._draw(rng, request.shape, index, record.video)
                read_clip(video.path, record, plan, out, **self._reading)
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
                "extents": plan.extents,
                "failures": failures,
            }
        raise self._too_many(failures)

    def _too_many(self, failures: Sequence[tuple[str, str]]) -> TooManyUnreadableError:
        path, reason = failures[0]
        return TooManyUnreadableError(
            f"{len(failures)} videos in a row could not be read, the first {path}: {reason}; "
            "check the list and the prefix of its paths (DATA.PATH_PREFIX)"
        )

    def _read_evaluation(
        self, index: int, parts: Sequence[tuple[int, NDArray[np.uint8]]]
    ) -> list[dict[str, Any]]:
        """Read evaluation clips of a video. Unreadable clips are filled with black."""
        video = self.videos[index]
        item = {"label": self._label(video, None), "flip": False, "video": index, "iteration": -1}
        try:
            record = self._record(index)
            looks = [self._look(index, record.video, part) for part, _ in parts]
            plans = [plan for plan, _ in looks]
            read_clips(video.path, record, plans, [out for _, out in parts], **self._reading)
        except UnreadableVideoError as error:
            if len(parts) > 1:  # retry one by one to keep the readable clips
                return [clip for part in parts for clip in self._read_evaluation(index, [part])]
            parts[0][1][:] = 0
            return [item | {"failures": [(video.path, str(error))], "unread": True}]
        return [item | targets | {"failures": []} for _, targets in looks]
