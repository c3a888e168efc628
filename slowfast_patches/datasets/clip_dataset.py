"""The torch data set of clips. Clips are indexed by `ClipRequest` or by integer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Self, cast

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from multigrid import (
    Batch,
    ClipPlan,
    ClipRequest,
    Sampling,
    Shown,
    Video,
    clip_generator,
    empty_clips,
)
from multigrid.errors import MultigridError
from multigrid.sampler import stack_labels
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.dataset_lists import dataset_of, list_path, read_list
from slowfast_patches.datasets.reading.decoding import is_reliable
from slowfast_patches.datasets.reading.index import note_unseekable, open_index
from slowfast_patches.datasets.reading.reader import read_clips
from slowfast_patches.datasets.reading.scanned_video import ScannedVideo, ScannedVideos
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError
from slowfast_patches.datasets.recipe_sampling import sampling_of
from slowfast_patches.registry import TASKS
from slowfast_patches.seams import CLIP_TRANSFORMS
from slowfast_patches.utils.errors import RunError, UserError

logger = logging.getLogger(__name__)

Label = int | NDArray[np.float32]
"""A class index, a multi-hot vector (classes,) in multi-label data sets, or an array that the task
of the data set understands. The arrays of all clips have the same shape."""

Draw = Callable[..., ClipPlan]
"""Function that draws the plan of a clip. Its last argument, `centre`, is the position of the frame
in the middle of the clip. By default, the training draws a random position."""

TRIES = 10
"""Number of consecutive unreadable videos after which the list is assumed to be wrong."""


class _WholeBatch(dict[Any, Any]):
    """Mini-batch that raises a clear error if it is passed to torch's default collate function."""

    def __getitem__(self, key: object) -> Any:
        if key == 0:  # torch's default collate function asks for the first item of a list
            raise UserError(
                "The data set returns whole mini-batches. Pass collate_fn=multigrid.collate to the "
                "DataLoader"
            )
        return super().__getitem__(key)


class VideoBatch(Batch):
    """Mini-batch of clips that also tells which videos the clips are from.

    Attributes:
        videos: (n,) int64. Index of each clip's video in the list.
        resampled: Number of clips that were drawn again (see `ClipDataset._aim`), for the log.
        failed_epochs: The epoch of each of the `failures` in training. A mini-batch may have clips
            of several epochs.
    """

    videos: Tensor
    resampled: int
    failed_epochs: list[int]


class ClipDataset(torch.utils.data.Dataset[dict[str, Any]]):
    """Torch data set of clips that are read in the requested shape.

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
    - `failures`: The (path, reason) of the requested video if it is unreadable, as a list. The
      request determines the replacement, so it does not depend on the worker.
    - `failed_epochs`: The epoch of each of the `failures`. Missing in evaluation.
    - `unread`: True for an unreadable evaluation clip, and otherwise missing.
    - `coverage`: See `ClipPlan`. Missing for an unread clip.
    - `shown`: The part of the video that the clip shows (`Shown`). Missing for an unread clip.

    In multi-label data sets, the label of a clip is a multi-hot vector (classes,). A training clip
    has the labels of all video frames from its first to its last frame, including frames that the
    stride skips. An evaluation clip has all labels of the video.

    Args:
        videos: The listed videos, each with a `path` and a `label`, or with a method `classes` in
            multi-label data sets.
        index: The index of `sources`. None if each source has a method `scanned`.
        sampling: How clips are sampled from the videos.
        seed: Seed of the random clips.
        views: Number of temporal views and of spatial crops per video in evaluation.
        evaluation_crop: Side of an evaluation clip in pixels. By default the crop of the baseline.
        changes: Functions that change a training clip in place, in this order. Their arguments are
            the clip, the epoch and the index of the video.
        split: "train", or the name of another split.
        classes: Number of classes. In multi-label data sets, it is the length of the label.
        multi_label: Whether the data set is a multi-label data set.
        sources: The videos to read, if the list has other items, such as key frames.
    """

    def __init__(
        self,
        videos: Sequence[Any],
        index: ScannedVideos | None,
        sampling: Sampling,
        *,
        seed: int,
        views: tuple[int, int] = (1, 1),
        evaluation_crop: int | None = None,
        changes: Sequence[Callable[[NDArray[np.uint8], int, int], None]] = (),
        split: str = "train",
        classes: int = 0,
        multi_label: bool = False,
        sources: Sequence[Any] | None = None,
    ) -> None:
        self.videos = videos
        self.index = index
        self.sampling = sampling
        self.split = split
        self.num_clips = views[0] * views[1]
        """Number of evaluation clips per video."""
        self._seed = seed
        self._views = views
        self._crop = sampling.base.crop if evaluation_crop is None else evaluation_crop
        self._changes = changes
        self._classes = classes
        self._multi_label = multi_label
        self._sources = videos if sources is None else sources

    @classmethod
    def of_recipe(cls, recipe: Recipe, split: str) -> Self:
        """Build the data set of a split, "train", "val" or "test".

        The validation split has one clip per video, at the centre of the video. The test split has
        TEST.NUM_ENSEMBLE_VIEWS × TEST.NUM_SPATIAL_CROPS clips per video.
        """
        videos = read_list(recipe, split)
        sources = cls._read_sources(recipe, split, videos)
        sampling = sampling_of(recipe, split)
        path = list_path(recipe, split)
        index = None
        if not hasattr(sources[0], "scanned"):  # videos of a frame list need no index
            index = open_index(path, [video.path for video in sources])
        options: dict[str, Any] = {}
        if split == "train":
            options["changes"] = [t.build(recipe) for t in CLIP_TRANSFORMS if recipe[t.switch]]
        if split == "test":
            options["views"] = (recipe.test.num_ensemble_views, recipe.test.num_spatial_crops)
            options["evaluation_crop"] = recipe.data.test_crop_size
        steps = "segments" if sampling.options.segments else f"stride {sampling.stride}"
        clips = f"{sampling.base.frames} frames ({steps})"
        logger.info("%s: %d videos of %s; clips have %s", split, len(videos), path, clips)
        return cls(
            videos,
            index,
            sampling,
            seed=recipe.rng_seed,
            split=split,
            classes=recipe.model.num_classes,
            multi_label=TASKS[dataset_of(recipe, split).task].multi_label,
            sources=sources,
            **options,
        )

    @classmethod
    def _read_sources(cls, recipe: Recipe, split: str, videos: Sequence[Any]) -> Sequence[Any]:
        """Return the videos that the clips are read from. By default, these are `videos`."""
        return videos

    def _label(self, video: Any, plan: ClipPlan) -> Label:
        """Return the label of the clip of a video that `plan` selects."""
        if not self._multi_label:
            label: Label = video.label
            return label
        span = plan.frame_indices[[0, -1]].tolist() if self.split == "train" else ()
        vector: NDArray[np.float32] = np.zeros(self._classes, np.float32)
        vector[list(video.classes(*span))] = 1
        return vector

    def _aim(self, number: int, video: Video, draw: Draw) -> tuple[ClipPlan, dict[str, Any]]:
        """Return the plan of a clip and the fields of its item that depend on the task.

        These are the `label`, and optionally `resampled`, the number of rejected plans. Subclasses
        may override this method to draw a clip again until it shows a target.
        """
        plan = draw()
        return plan, {"label": self._label(self.videos[number], plan)}

    def _scanned(self, number: int) -> ScannedVideo:
        """Return the result of the scan of a video, from the index or from the video itself.

        Raises:
            UnreadableVideoError: The video could not be scanned.
        """
        if self.index is not None:
            return self.index[number]
        scanned: ScannedVideo = self._sources[number].scanned()
        return scanned

    def __len__(self) -> int:
        return len(self.videos) * self.num_clips

    def __getitem__(self, request: ClipRequest | int) -> dict[str, Any]:
        clip = empty_clips(1, *self._sides(request))[0].numpy()
        (item,) = self._read([request], [clip])
        return {"clip": clip, **item}

    def __getitems__(self, requests: Sequence[ClipRequest | int]) -> VideoBatch:
        """Return the mini-batch for several requests, which must all have the same shape."""
        sides = self._sides(requests[0])
        clips = empty_clips(len(requests), *sides)
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
            resampled=sum(item.get("resampled", 0) for item in read),
            failed_epochs=[epoch for item in items for epoch in item.get("failed_epochs", ())],
        )
        base = self.sampling.base
        if isinstance(requests[0], ClipRequest) and sides != (base.frames, base.crop):
            batch["coverage"] = torch.tensor([item["coverage"] for item in items])
        return cast(VideoBatch, _WholeBatch(batch))

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
        if torch.utils.data.get_worker_info() is not None:
            # Use one thread, as torch does in a worker.
            # With 1 instead of 0, OpenCV in a fork would wait for threads of the parent process.
            cv2.setNumThreads(0)
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

        If the video is unreadable, read a clip of another video, which is drawn at random. Only the
        requested video is counted as a failure. Each unreadable video of an epoch is thus counted
        once.
        """
        rng = clip_generator(self._seed, request.epoch, request.video)
        draw = partial(self.sampling.training_plan, rng, request.shape)
        failures = list[tuple[str, str]]()
        index = request.video
        while len(failures) < TRIES:
            try:
                (item,) = self._read_planned(index, [(draw, out)])
            except UnreadableVideoError as error:
                failures.append((self.videos[index].path, str(error)))
                index = int(rng.integers(len(self.videos)))
                continue
            for change in self._changes:
                change(out, request.epoch, request.video)
            failed = {"failures": failures[:1], "failed_epochs": [request.epoch] * bool(failures)}
            return item | {"iteration": request.iteration, **failed}
        raise self._too_many(failures)

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
        plan = self.sampling.evaluation_plan
        clips = [(partial(plan, part, self._views, self._crop), out) for part, out in parts]
        try:
            items = self._read_planned(index, clips)
        except UnreadableVideoError as error:
            if len(parts) > 1:  # retry the clips one by one, because some may be readable
                return [clip for part in parts for clip in self._read_evaluation(index, [part])]
            parts[0][1][:] = 0
            failure = (self.videos[index].path, str(error))
            item = {"flip": False, "video": index, "iteration": -1, "unread": True}
            return [item | {"failures": [failure]}]
        return [item | {"iteration": -1, "failures": []} for item in items]

    def _read_planned(
        self, index: int, clips: Sequence[tuple[Draw, NDArray[np.uint8]]]
    ) -> list[dict[str, Any]]:
        """Read clips of a video, and return the fields of their items that depend on the plan.

        Args:
            index: Index of the video in the list.
            clips: For each clip, the function (video, centre) that draws its plan, and its output
                array.

        Raises:
            UnreadableVideoError: One of the clips cannot be read.
        """
        scanned = self._scanned(index)
        video = scanned.video
        try:
            aimed = [self._aim(index, video, partial(draw, video)) for draw, _ in clips]
        except UnreadableVideoError:  # for example, the video ends before a key frame
            raise
        except MultigridError as error:  # the video is too short, and DATA.SHORT_VIDEOS is error
            raise RunError(f"{self.videos[index].path}: {error}") from error
        plans = [plan for plan, _ in aimed]
        path = self.videos[index].path
        read_clips(path, scanned, plans, [out for _, out in clips])
        if self.index is not None and scanned.can_seek and not is_reliable(path):
            note_unseekable(self.index.csv, path)
        return [
            targets
            | {"flip": plan.flip, "video": index, "coverage": plan.coverage}
            | {"shown": Shown.of_plan(plan, video)}
            for plan, targets in aimed
        ]
