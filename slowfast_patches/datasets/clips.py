"""Data set of clips that are sampled as a recipe specifies."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multigrid import ClipPlan, SamplingOptions
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.augmentation import Augmentation
from slowfast_patches.datasets.items import Clips, Label, Sampling
from slowfast_patches.datasets.lists.dataset_lists import dataset_of, list_path, read_list
from slowfast_patches.datasets.reading.index import open_index
from slowfast_patches.datasets.reading.reader import ClipReader
from slowfast_patches.datasets.reading.scanned_video import ScannedVideo
from slowfast_patches.datasets.reading.unreadable import ReadingLimits
from slowfast_patches.registry import TASKS

logger = logging.getLogger(__name__)


class ClipDataset(Clips):
    """Data set of clips of the videos in the list of a split.

    The training split is indexed by `ClipRequest`. The validation split has one clip per video, at
    the centre of the video. The test split has TEST.NUM_ENSEMBLE_VIEWS × TEST.NUM_SPATIAL_CROPS
    clips per video.

    In multi-label data sets, the label of a clip is a multi-hot vector, (MODEL.NUM_CLASSES,)
    float32. A training clip has the labels of all video frames from its first to its last frame,
    including frames that the stride skips. An evaluation clip has all labels of the video.
    """

    def __init__(self, recipe: Recipe, split: str) -> None:
        assert split in ("train", "val", "test"), split
        self.split = split
        self._classes = int(recipe.model.num_classes)
        self._multi_label = TASKS[dataset_of(recipe, split).task].multi_label
        videos = read_list(recipe, split)
        path = list_path(recipe, split)
        reader = clip_reader_of(recipe)
        sampling = sampling_of(recipe, split)
        index = None
        self._sources = self._read_sources(recipe, videos)
        if not hasattr(self._sources[0], "scanned"):  # videos of a frame list need no index
            paths = [video.path for video in self._sources]
            index = open_index(path, paths, step=sampling.step, limits=reader.limits)
        test = recipe.test
        super().__init__(
            videos,
            index,
            sampling,
            seed=recipe.rng_seed,
            views=(test.num_ensemble_views, test.num_spatial_crops) if split == "test" else (1, 1),
            augment=_augmentation(recipe) if split == "train" else None,
            evaluation_crop=recipe.data.test_crop_size if split == "test" else None,
            reader=reader,
        )
        taken = f"{sampling.base.frames} frames at a stride of {sampling.stride}"
        if sampling.options.segments:
            taken = (
                f"one frame from each of {sampling.base.frames} segments of the video "
                f"(DATA.SAMPLING_RATE {sampling.stride} has no effect)"
            )
        logger.info("%s: %d videos of %s; clips are %s", split, len(videos), path, taken)

    def _read_sources(self, recipe: Recipe, videos: Sequence[Any]) -> Sequence[Any]:
        """Return the videos that the clips are read from.

        By default these are the listed `videos`. Override this method if the list has other items,
        such as key frames.
        """
        return videos

    def _label(self, video: Any, plan: ClipPlan) -> Label:
        if not self._multi_label:
            return super()._label(video, plan)
        positions = plan.positions[[0, -1]].tolist() if self.split == "train" else ()
        vector: NDArray[np.float32] = np.zeros(self._classes, np.float32)
        vector[list(video.classes(*positions))] = 1
        return vector

    def _scanned(self, number: int) -> ScannedVideo:
        if self.index is None:
            scanned: ScannedVideo = self._sources[number].scanned(self._reader.limits)
            return scanned
        return super()._scanned(number)


def _augmentation(recipe: Recipe) -> Augmentation | None:
    if not recipe.aug.enable:
        return None
    return Augmentation(recipe.aug, recipe.data.mean, recipe.rng_seed)


def clip_reader_of(recipe: Recipe) -> ClipReader:
    """Return a reader with the limits DATA.MAX_... and the decoder threads of a recipe."""
    data = recipe.data
    limits = ReadingLimits(
        pixels=data.max_frame_pixels,
        frames=data.max_video_frames,
        bytes=data.max_frame_bytes,
        seconds=data.max_read_seconds,
    )
    return ClipReader(limits, threads=0 if recipe.data_loader.enable_multi_thread_decode else 1)


def sampling_of(recipe: Recipe, split: str) -> Sampling:
    """Return how the clips of a split are sampled from its videos."""
    data = recipe.data
    dataset = dataset_of(recipe, split)
    segments = data.clip_sampling == "segments"
    if data.clip_sampling == "auto":
        segments = dataset.segments
    return Sampling(
        recipe.base_shape,
        data.sampling_rate,
        data.train_jitter_scales,
        SamplingOptions(
            keep_field_of_view=recipe.multigrid.keep_field_of_view,
            flip=data.random_flip,
            inverse_scale=data.inv_uniform_sample,
            segments=segments,
            exact_strides=data.exact_strides,
        ),
        target_fps=data.target_fps,
        to_end=dataset.views_to_end,
    )
