"""The classes of a video, from a trained model: read, scored and averaged as its recipe tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from multigrid import empty_clips
from slowfast_patches import patching
from slowfast_patches.config import check_recipe, parse_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.clips import reading_limits, reading_options, sampling_of
from slowfast_patches.datasets.lists.dataset_lists import dataset_of, load_with_classes
from slowfast_patches.datasets.reading.clip_reader import read_clips
from slowfast_patches.datasets.reading.damage import find_damage
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.launch.device import with_precision
from slowfast_patches.models.build import build_model
from slowfast_patches.models.inputs import InputTransform
from slowfast_patches.models.solver import Precision
from slowfast_patches.models.weights import load_weights
from slowfast_patches.train.checkpoint import checkpoint_of, load
from slowfast_patches.train.record.tables import names_of_data


def load_model(
    checkpoint: str | Path, recipe_file: Path | None = None, overrides: Sequence[object] = ()
) -> Predictor:
    """A trained model with its recipe and the names of its classes, to score clips and videos.

    Args:
        checkpoint: a file, or a run's OUTPUT_DIR, of which the best checkpoint is taken if there is
            one, else the last. Nothing in it is executed.
        recipe_file: the recipe of weights that are not of a run here.
        overrides: KEY, VALUE, KEY, VALUE, ... that change the recipe, such as "NUM_GPUS", 0.

    Raises:
        ValueError: there is no checkpoint, or it cannot be read, or not without a recipe, or it is
            of boxes.
    """
    path = checkpoint_of(Path(checkpoint))
    recipe, names = read_checkpoint(path, recipe_file, overrides)
    if recipe.detection.enable:
        raise ValueError(
            f"{path} is a model of boxes: use multigrid-predict --boxes FILE, or "
            "slowfast_patches.train.predict.boxes.BoxPredictor"
        )
    return Predictor(recipe, path, names or names_of_data(recipe))


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
        recipe = load_with_classes(recipe_file, overrides)
    else:
        assert checkpoint is not None
        recipe = parse_recipe(checkpoint.cfg, f"the config in {path}", overrides)
    check_recipe(recipe)
    names = checkpoint and checkpoint.class_names
    return recipe, names if names and len(names) == recipe.model.num_classes else None


class Predictor(nn.Module):
    """A trained model that scores clips and videos, on a GPU if the recipe uses one and there is
    one; made by `load_model`, in evaluation mode.

    Attributes:
        recipe: what it was trained and is tested with.
        class_names: by class number, or None.
    """

    def __init__(
        self, recipe: Recipe, path: Path, class_names: tuple[str, ...] | None = None
    ) -> None:
        """Load the weights of a checkpoint; ValueError where they are not of the recipe's model."""
        super().__init__()
        patching.apply()
        on_gpu = recipe.num_gpus > 0 and torch.cuda.is_available()
        self.recipe = recipe = with_precision(recipe, on_gpu)
        self.class_names = class_names
        device = torch.device("cuda" if on_gpu else "cpu")
        self._model: nn.Module = build_model(recipe).to(device)
        kind = recipe.test.checkpoint_type
        load_weights(self._model, path, kind=kind, complete=True, section="TEST")
        self._transform = InputTransform.of_recipe(recipe, device)
        self._precision = Precision(recipe, device)
        self.eval()

    def forward(self, clips: Tensor) -> Tensor:
        """The probability of each class, (N, classes), for clips (N, 3, T, S, S) of RGB pixels,
        uint8, on the recipe's test grid: DATA.NUM_FRAMES and DATA.TEST_CROP_SIZE."""
        with self._precision.autocast():
            scores: Tensor = self._model(self._transform.of_pixels(clips))
        return scores

    @torch.no_grad()
    def scores(self, path: str) -> Tensor:
        """The probability of each class, (C,) float64, for a video file or a folder of JPEG frames:
        the mean, or as DATA.ENSEMBLE_METHOD says the maximum, over the views and crops of TEST.

        Raises:
            UnreadableVideoError: the video cannot be read; says why.
        """
        recipe = self.recipe
        at_once = max(1, recipe.test.batch_size // max(1, recipe.num_gpus))
        device = self._transform.device
        parts = [self(clips.to(device)) for clips in torch.split(self.clips(path), at_once)]
        scores = torch.cat(parts).double().cpu()
        return scores.mean(0) if recipe.data.ensemble_method == "sum" else scores.amax(0)

    def damage(self, path: str) -> str:
        """Say what of a video cannot be decoded; empty if all can. Raises as `scores`."""
        limits = reading_limits(self.recipe)
        return find_damage(path, scan(path, limits), limits)

    def clips(self, path: str) -> Tensor:
        """The clips that a video is tested on, (views × crops, 3, T, S, S) uint8, on the CPU, as
        `forward` takes them. Raises as `scores`."""
        recipe = self.recipe
        record = scan(path, reading_limits(recipe))
        views = (recipe.test.num_ensemble_views, recipe.test.num_spatial_crops)
        video = record.video
        if dataset_of(recipe, "test").counts_frames:
            video = video._replace(fps=float(recipe.data.target_fps))
        sampling = sampling_of(recipe, "test")
        crop = recipe.data.test_crop_size
        clips = empty_clips(views[0] * views[1], recipe.data.num_frames, crop)
        plans = [sampling.evaluation_plan(video, part, views, crop) for part in range(len(clips))]
        read_clips(path, record, plans, [c.numpy() for c in clips], **reading_options(recipe))
        return clips.permute(0, 4, 1, 2, 3)
