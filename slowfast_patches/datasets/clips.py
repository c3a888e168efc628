"""The clips of a recipe's data set, read as the recipe says."""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from multigrid import ClipPlan
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.items import Clips, Label, Sampling
from slowfast_patches.datasets.lists.dataset_lists import (
    dataset_name,
    dataset_of,
    list_path,
    read_list,
)
from slowfast_patches.datasets.lists.frame_list import FrameList, FrameVideo
from slowfast_patches.datasets.reading.index import open_index
from slowfast_patches.datasets.reading.video_record import VideoRecord

__all__ = ["ClipDataset", "reading_options", "sampling_of"]

logger = logging.getLogger(__name__)


class ClipDataset(Clips):
    """Clips of the videos of a list.

    The training split is indexed by `ClipRequest`. The validation split has one centre clip of each
    video; the test split has NUM_ENSEMBLE_VIEWS × NUM_SPATIAL_CROPS.

    A video with several labels has a multi-hot one, (NUM_CLASSES,) float32. A training clip has the
    labels of all frames from its first to its last, also of those between that are not read; a clip
    of validation or testing has those of the whole video.
    """

    advice = "check DATA.PATH_PREFIX and the list"

    def __init__(self, recipe: Recipe, split: str) -> None:
        assert split in ("train", "val", "test"), split
        self.split = split
        self._classes = int(recipe.model.num_classes)
        self._multi_label = dataset_of(recipe, split).multi_label
        videos = read_list(recipe, split)
        options = reading_options(recipe)
        index = None
        if not isinstance(videos, FrameList):
            paths = [video.path for video in videos]
            index = open_index(list_path(recipe, split), paths, max_pixels=options["max_pixels"])
        is_test = split == "test"
        test = recipe.test
        super().__init__(
            videos,
            index,
            sampling_of(recipe, split),
            seed=recipe.rng_seed,
            views=(test.num_ensemble_views, test.num_spatial_crops) if is_test else (1, 1),
            evaluation_crop=recipe.data.test_crop_size if is_test else None,
            **options,
        )
        self._log(recipe)

    def _log(self, recipe: Recipe) -> None:
        """Log the form in which the videos are, and how clips are taken from them."""
        path = list_path(recipe, self.split)
        form = "WebM files" if path.suffix == ".json" else "video files"
        form = "frame lists" if isinstance(self.videos, FrameList) else form
        frames = self.sampling.base.frames
        stride = self.sampling.stride
        clips = f"{frames} frames at a stride of {stride}"
        if self.sampling.segments:
            clips = (
                f"{frames} segments of the whole video, whatever DATA.SAMPLING_RATE {stride} says"
            )
        name = dataset_name(recipe, self.split)
        count = len(self.videos)
        logger.info(
            "%s %s: %d videos as %s, by %s; clips are %s",
            *(name, self.split, count, form, path, clips),
        )

    def _label(self, video: FrameVideo, plan: ClipPlan | None) -> Label:
        if not self._multi_label:
            return video.label
        if self.split == "train" and plan is not None:
            labels = video.labels(int(plan.positions[0]), int(plan.positions[-1]))
        else:
            labels = video.labels()
        vector: NDArray[np.float32] = np.zeros(self._classes, np.float32)
        vector[list(labels)] = 1
        return vector

    def _record(self, number: int) -> VideoRecord:
        video = self.videos[number]
        if isinstance(video, FrameVideo):
            return video.record(self._reading["max_pixels"])
        return super()._record(number)


def reading_options(recipe: Recipe) -> dict[str, int]:
    """The keyword arguments of `read_clip` by a recipe."""
    threads = 0 if recipe.data_loader.enable_multi_thread_decode else 1
    return {"threads": threads, "max_pixels": recipe.data.max_frame_pixels}


def sampling_of(recipe: Recipe, split: str) -> Sampling:
    """Where a recipe's clips are taken from the videos of a split's data set."""
    data = recipe.data
    dataset = dataset_of(recipe, split)
    segments = data.clip_sampling == "segments"
    if data.clip_sampling == "auto":
        segments = dataset.segments
    return Sampling(
        recipe.base_shape,
        data.sampling_rate,
        data.train_jitter_scales,
        target_fps=data.target_fps,
        flip=data.random_flip,
        inverse_scale=data.inv_uniform_sample,
        segments=segments,
        exact_strides=data.exact_strides,
        keep_field_of_view=recipe.multigrid.keep_field_of_view,
        to_end=dataset.views_to_end,
    )
