"""The classes of a video, from a trained model: read, scored and averaged as its recipe tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from multigrid import empty_clips
from slowfast_patches import patching
from slowfast_patches.config import check_recipe, load_recipe, parse_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.clips import reading_options, sampling_of
from slowfast_patches.datasets.lists.dataset_lists import dataset_of
from slowfast_patches.datasets.reading.clip_reader import read_clips
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.launch.device import with_precision
from slowfast_patches.models.build import build_model
from slowfast_patches.models.inputs import InputTransform
from slowfast_patches.models.solver import Precision
from slowfast_patches.models.weights import load_weights
from slowfast_patches.train.checkpoint_files import load

__all__ = ["Predictor", "read_checkpoint"]


def read_checkpoint(
    path: Path, recipe_file: Path | None = None, overrides: Sequence[object] = ()
) -> tuple[Recipe, tuple[str, ...] | None]:
    """The recipe to predict with, that of a file or the one that a checkpoint was trained with, and
    the names of the classes, None where the checkpoint has none. Raises ValueError for a checkpoint
    that cannot be read, and for a recipe that is missing or wrong."""
    try:
        checkpoint = load(path)
    except ValueError as error:  # weights of another kind, which `Predictor` reads
        if recipe_file is None:
            raise ValueError(f"{error}; of other weights, give their recipe: --cfg FILE") from error
        checkpoint = None
    if recipe_file is not None:
        recipe = load_recipe(recipe_file, overrides)
    else:
        assert checkpoint is not None
        recipe = parse_recipe(checkpoint.cfg, f"the config in {path}", overrides)
    check_recipe(recipe)
    names = checkpoint and checkpoint.class_names
    return recipe, names if names and len(names) == recipe.model.num_classes else None


class Predictor:
    """A trained model that scores videos, on a GPU if the recipe uses one and there is one."""

    def __init__(self, recipe: Recipe, path: Path) -> None:
        """Load the weights of a checkpoint; ValueError where they are not of the recipe's model."""
        patching.apply()
        on_gpu = recipe.num_gpus > 0 and torch.cuda.is_available()
        self._recipe = recipe = with_precision(recipe, on_gpu)
        device = torch.device("cuda" if on_gpu else "cpu")
        self._model: nn.Module = build_model(recipe).to(device).eval()
        kind = recipe.test.checkpoint_type
        load_weights(self._model, path, kind=kind, complete=True, section="TEST")
        self._transform = InputTransform.of_recipe(recipe, device)
        self._precision = Precision(recipe, device)

    @torch.no_grad()
    def __call__(self, path: str) -> Tensor:
        """The probability of each class, (C,) float64, for a video file or a folder of JPEG frames:
        the mean, or as DATA.ENSEMBLE_METHOD says the maximum, over the views and crops of TEST.

        Raises:
            UnreadableVideoError: the video cannot be read; says why.
        """
        recipe = self._recipe
        at_once = max(1, recipe.test.batch_size // max(1, recipe.num_gpus))
        with self._precision.autocast():
            parts = [
                self._model(self._transform(clips, torch.zeros(len(clips), dtype=torch.bool)))
                for clips in torch.split(self.clips(path), at_once)
            ]
        scores = torch.cat(parts).double().cpu()
        return scores.mean(0) if recipe.data.ensemble_method == "sum" else scores.amax(0)

    def clips(self, path: str) -> Tensor:
        """The clips that a video is tested on, (views × crops, T, S, S, 3) uint8."""
        recipe = self._recipe
        record = scan(path, recipe.data.max_frame_pixels)
        views = (recipe.test.num_ensemble_views, recipe.test.num_spatial_crops)
        video = record.video
        if dataset_of(recipe, "test").counts_frames:
            video = video._replace(fps=float(recipe.data.target_fps))
        sampling = sampling_of(recipe, "test")
        crop = recipe.data.test_crop_size
        clips = empty_clips(views[0] * views[1], recipe.data.num_frames, crop)
        plans = [sampling.evaluation_plan(video, part, views, crop) for part in range(len(clips))]
        read_clips(path, record, plans, [c.numpy() for c in clips], **reading_options(recipe))
        return clips
