"""What all data sets of a recipe share: the clips of a list, read as the recipe says.

A data set says what it is called, which label a clip has, and how clips are placed in their videos.
"""

from __future__ import annotations

from typing import ClassVar

from slowfast_patches.config.recipe import Data, Recipe
from slowfast_patches.datasets.items import Clips, Sampling
from slowfast_patches.datasets.lists.dataset_lists import list_path, read_list
from slowfast_patches.datasets.lists.frame_list import FrameList, FrameVideo
from slowfast_patches.datasets.reading.index import open_index
from slowfast_patches.datasets.reading.video_record import VideoRecord

__all__ = ["ClipDataset", "reading_options", "sampling_of", "takes_segments"]


class ClipDataset(Clips):
    """Clips of the videos of a list; the host's registry calls a data set with (recipe, split).

    The training split is asked by `ClipRequest`. The validation split has one centre clip of each
    video; the test split has NUM_ENSEMBLE_VIEWS × NUM_SPATIAL_CROPS.
    """

    advice = "check DATA.PATH_PREFIX and the list"
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
        self.split, test = split, recipe.test
        videos, index, options = read_list(recipe, split, self.name), None, reading_options(recipe)
        if not isinstance(videos, FrameList):
            path, paths = list_path(recipe, split, self.name), [v.path for v in videos]
            index = open_index(path, paths, max_pixels=options["max_pixels"])
        is_test = split == "test"
        super().__init__(
            videos,
            index,
            sampling_of(type(self), recipe),
            seed=recipe.rng_seed,
            views=(test.num_ensemble_views, test.num_spatial_crops) if is_test else (1, 1),
            evaluation_crop=recipe.data.test_crop_size if is_test else None,
            **options,
        )

    def _record(self, number: int) -> VideoRecord:
        video = self.videos[number]
        if isinstance(video, FrameVideo):
            return video.record(self._reading["max_pixels"])
        return super()._record(number)


def reading_options(recipe: Recipe) -> dict[str, int]:
    """What a config says to `read_clip`."""
    threads = 0 if recipe.data_loader.enable_multi_thread_decode else 1
    return {"threads": threads, "max_pixels": recipe.data.max_frame_pixels}


def takes_segments(dataset: type[ClipDataset], data: Data) -> bool:
    """Whether clips have a frame from each equal part of their video; `data` is the recipe's."""
    auto = data.clip_sampling == "auto"
    return dataset.segments if auto else data.clip_sampling == "segments"


def sampling_of(dataset: type[ClipDataset], recipe: Recipe) -> Sampling:
    """Where a recipe's clips are taken from the videos of a data set."""
    data = recipe.data
    return Sampling(
        recipe.base_shape,
        data.sampling_rate,
        data.train_jitter_scales,
        target_fps=data.target_fps,
        flip=data.random_flip,
        inverse_scale=data.inv_uniform_sample,
        segments=takes_segments(dataset, data),
        exact_strides=data.exact_strides,
        keep_field_of_view=recipe.multigrid.keep_field_of_view,
        to_end=dataset.views_to_end,
    )
