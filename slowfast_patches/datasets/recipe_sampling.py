"""How a recipe samples clips from videos."""

from __future__ import annotations

from multigrid import Sampling, SamplingOptions
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.dataset_lists import dataset_of


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
