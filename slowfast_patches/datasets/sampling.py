"""Which frames and crops of a video make up a clip, in training and in evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from multigrid import (
    ClipPlan,
    Grid,
    SamplingOptions,
    Shape,
    Video,
    Window,
    make_grid,
    plan_test,
    plan_train,
)
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.dataset_lists import dataset_of


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
        part: int,
        views: tuple[int, int],
        crop: int,
        video: Video,
        centre: float | None = None,
    ) -> ClipPlan:
        """Return the plan of one evaluation clip of a video.

        A video has (temporal views × spatial crops) evaluation clips. With one spatial crop, the
        short side of the frame is resized to the smallest value used in training, and the crop is
        the centre of the frame. With three spatial crops, and for clips around a key frame, the
        short side is resized to the side of the crop.

        Args:
            part: Index of the clip among the evaluation clips of the video.
            views: The number of temporal views and the number of spatial crops.
            crop: Side of the crop in pixels.
            video: The video.
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
            short_videos=data.short_videos,
        ),
        target_fps=data.target_fps,
        to_end=dataset.views_to_end,
    )


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
        return cls(int(np.ptp(plan.positions)) + 1, plan.window(video), video)
