"""What all data sets share: clips of the videos of a list, read on the grid asked for.

A data set says what it is called, which label a clip has, and how clips are placed in their videos.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from multigrid import (
    Batch,
    ClipPlan,
    ClipRequest,
    Video,
    clip_generator,
    empty_clips,
    make_grid,
    plan_test,
    plan_train,
)
from slowfast_patches.config.recipe import Data, Recipe
from slowfast_patches.datasets.lists.csv_list import LabelledVideo
from slowfast_patches.datasets.lists.dataset_lists import list_path, read_list
from slowfast_patches.datasets.lists.frame_list import FrameList, FrameVideo
from slowfast_patches.datasets.reading.clip_reader import read_clip
from slowfast_patches.datasets.reading.index import VideoIndex, open_index
from slowfast_patches.datasets.reading.video_record import UnreadableVideoError, VideoRecord

__all__ = [
    "ClipDataset",
    "EvaluationBatch",
    "Label",
    "TooManyUnreadableError",
    "evaluation_plan",
    "reading_options",
]

Label = int | NDArray[np.float32]
"""A class, or a multi-hot vector (classes,) where clips may have several."""

_TRIES = 10
"""Videos in a row that may be unreadable before the list itself is taken to be wrong."""


class EvaluationBatch(Batch):
    """A mini-batch that says of which videos it is: numbers in the list."""

    videos: Tensor


class TooManyUnreadableError(ValueError):
    """So many videos cannot be read that the list or its prefix must be wrong."""

    def __init__(self, message: str) -> None:
        # The loader re-raises a worker's error with the worker's traceback as its message.
        super().__init__(message.rsplit("TooManyUnreadableError: ", 1)[-1].strip())


class ClipDataset(torch.utils.data.Dataset[dict[str, Any]]):
    """Clips of the videos of a list; the host's registry calls a data set with (recipe, split).

    Training items are asked for by `ClipRequest`, which names the grid. Validation and testing
    items are numbers: the test split has NUM_ENSEMBLE_VIEWS × NUM_SPATIAL_CROPS clips of a video,
    one after another; the validation split has one centre clip of each.

    A list of them is a whole mini-batch, each clip read into its place: what the loader asks for.
    In evaluation, it is without the clips that cannot be read.
    An item has `clip` (T, S, S, 3) uint8, `label`, `flip`, `iteration`, `video` (its number in the
    list), and `failures`: (path, reason) of videos that could not be read and were replaced by
    another, which the request alone decides.
    """

    name: ClassVar[str]
    """What TRAIN.DATASET and TEST.DATASET call it."""
    segments: ClassVar[bool] = False
    """Whether, where DATA.CLIP_SAMPLING is auto, a clip has one frame from each equal part of its
    video, not frames at a stride."""
    counts_frames: ClassVar[bool] = False
    """Whether strides count a video's own frames, whatever their rate."""
    views_to_end: ClassVar[bool] = False
    """Whether the last of several test views ends with the video; PySlowFast's end before it."""

    def __init__(self, recipe: Recipe, split: str) -> None:
        assert split in ("train", "val", "test"), split
        self.split = split
        self._data, self._seed, self._base = recipe.data, recipe.rng_seed, recipe.base_shape
        self._keep_field_of_view = recipe.multigrid.keep_field_of_view
        self._views, self._crops = 1, 1
        if split == "test":
            self._views, self._crops = recipe.test.num_ensemble_views, recipe.test.num_spatial_crops
        self._reading = reading_options(recipe)
        self.videos = read_list(recipe, split, self.name)
        self.index: VideoIndex | None = None
        if not isinstance(self.videos, FrameList):
            path, paths = list_path(recipe, split, self.name), [v.path for v in self.videos]
            self.index = open_index(path, paths, max_pixels=recipe.data.max_frame_pixels)

    def _label(self, video: Any, plan: ClipPlan | None) -> Label:
        """The label of a clip of a video; `plan` is None where the video cannot be read."""
        label: int = video.label
        return label

    def _record(self, number: int, video: LabelledVideo | FrameVideo) -> VideoRecord:
        """What the reader has to know of a video; raises UnreadableVideoError."""
        if isinstance(video, FrameVideo):
            return video.record(self._data.max_frame_pixels)
        assert self.index is not None
        return self.index.record(number)

    def __len__(self) -> int:
        return len(self.videos) * self._views * self._crops

    @property
    def _test_crop(self) -> int:
        return int(self._data.test_crop_size) if self.split == "test" else self._base.crop

    @property
    def num_clips(self) -> int:
        """Clips of a video in this split."""
        return self._views * self._crops

    def __getitem__(self, request: ClipRequest | int) -> dict[str, Any]:
        clip = empty_clips(1, *self._sides(request))[0].numpy()
        return {"clip": clip, **self._read(request, clip)}

    def __getitems__(self, requests: Sequence[ClipRequest | int]) -> EvaluationBatch:
        """The mini-batch of some requests of one shape."""
        clips = empty_clips(len(requests), *self._sides(requests[0]))
        items = [self._read(r, c.numpy()) for r, c in zip(requests, clips, strict=True)]
        iteration, failures = items[0]["iteration"], [f for item in items for f in item["failures"]]
        if failures and not isinstance(requests[0], ClipRequest):
            read = [number for number, item in enumerate(items) if not item["failures"]]
            clips, items = clips[read], [items[number] for number in read]
        return EvaluationBatch(
            clips=clips,
            labels=torch.as_tensor(np.asarray([item["label"] for item in items])),
            flips=torch.tensor([item["flip"] for item in items]),
            iteration=iteration,
            failures=failures,
            videos=torch.tensor([item["video"] for item in items], dtype=torch.int64),
        )

    def _sides(self, request: ClipRequest | int) -> tuple[int, int]:
        """Frames and crop of a clip."""
        if isinstance(request, ClipRequest):
            return request.shape.frames, request.shape.crop
        return self._base.frames, self._test_crop

    def _read(self, request: ClipRequest | int, out: NDArray[np.uint8]) -> dict[str, Any]:
        """Read a clip to `out`; all there is to say of it."""
        if isinstance(request, ClipRequest):
            return self._read_training(request, out)
        return self._read_testing(request, out)

    def _read_training(self, request: ClipRequest, out: NDArray[np.uint8]) -> dict[str, Any]:
        data = self._data
        grid = make_grid(
            request.shape,
            self._base,
            data.sampling_rate,
            data.train_jitter_scales,
            flip=data.random_flip,
            inverse_scale=data.inv_uniform_sample,
            segments=takes_segments(type(self), data),
            exact_strides=data.exact_strides,
            keep_field_of_view=self._keep_field_of_view,
        )
        rng = clip_generator(self._seed, request.epoch, request.video)
        failures, index = list[tuple[str, str]](), request.video
        while len(failures) < _TRIES:
            video = self.videos[index]
            try:
                record = self._record(index, video)
                plan = plan_train(rng, grid, record.video, data.target_fps)
                read_clip(video.path, record, plan, out, **self._reading)
            except UnreadableVideoError as error:
                failures.append((video.path, str(error)))
                index = int(rng.integers(len(self.videos)))
                continue
            item = {"label": self._label(video, plan), "flip": plan.flip, "video": index}
            return item | {"iteration": request.iteration, "failures": failures}
        first = "{}: {}".format(*failures[0])
        said = f"{_TRIES} videos in a row could not be read, the first {first}"
        raise TooManyUnreadableError(f"{said}; check DATA.PATH_PREFIX and the list")

    def _read_testing(self, number: int, out: NDArray[np.uint8]) -> dict[str, Any]:
        """A clip of a video, of the training crop in validation; black where it cannot be read."""
        index, part = divmod(number, self.num_clips)
        video, plan = self.videos[index], None
        failures, views = list[tuple[str, str]](), (self._views, self._crops)
        try:
            record = self._record(index, video)
            crop = self._test_crop
            plan = evaluation_plan(type(self), self._data, record.video, part, views, crop)
            read_clip(video.path, record, plan, out, **self._reading)
        except UnreadableVideoError as error:
            failures.append((video.path, str(error)))
            out[:] = 0
        item = {"label": self._label(video, plan), "flip": False, "video": index}
        return item | {"iteration": -1, "failures": failures}


def reading_options(recipe: Recipe) -> dict[str, int]:
    """What a config says to `read_clip`."""
    threads = 0 if recipe.data_loader.enable_multi_thread_decode else 1
    return {"threads": threads, "max_pixels": recipe.data.max_frame_pixels}


def takes_segments(dataset: type[ClipDataset], data: Data) -> bool:
    """Whether clips have a frame from each equal part of their video; `data` is the recipe's."""
    auto = data.clip_sampling == "auto"
    return dataset.segments if auto else data.clip_sampling == "segments"


def evaluation_plan(
    dataset: type[ClipDataset],
    data: Data,
    video: Video,
    part: int,
    views: tuple[int, int],
    crop: int,
) -> ClipPlan:
    """The `part`-th of the views × crops clips that a video is scored on.

    One crop is the centre of the smallest training size; three are cut from a short side as large
    as the crop. `data` is the recipe's.
    """
    count, crops = views
    return plan_test(
        video,
        frames=data.num_frames,
        stride=data.sampling_rate,
        crop=crop,
        view=(part // crops, count),
        spatial=(part % crops, crops),
        target_fps=data.target_fps,
        short_side=max(crop, data.train_jitter_scales[0]) if crops == 1 else crop,
        segments=takes_segments(dataset, data),
        exact_strides=data.exact_strides,
        to_end=dataset.views_to_end,
    )
