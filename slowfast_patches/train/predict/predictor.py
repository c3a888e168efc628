"""Classify videos with a trained model, read, scored and averaged as its recipe tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from multigrid import empty_clips
from slowfast_patches import patching
from slowfast_patches.config import check_recipe, parse_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.tasks import TASKS
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
    """Load a trained model with its recipe and the names of its classes.

    Args:
        checkpoint: a file, or a run's OUTPUT_DIR, from which the best checkpoint is taken, or the
            last one if there is no best. Nothing in it is executed.
        recipe_file: the recipe of weights that come from elsewhere.
        overrides: KEY, VALUE, KEY, VALUE, ... that change the recipe, such as "NUM_GPUS", 0.

    Raises:
        ValueError: there is no checkpoint, it cannot be read, its recipe is missing, or its model
            scores boxes.
    """
    path = checkpoint_of(Path(checkpoint))
    recipe, names = read_checkpoint(path, recipe_file, overrides)
    return Predictor(recipe, path, names or names_of_data(recipe))


def read_checkpoint(
    path: Path, recipe_file: Path | None = None, overrides: Sequence[object] = ()
) -> tuple[Recipe, tuple[str, ...] | None]:
    """Read the recipe and the class names of a checkpoint.

    Args:
        path: the checkpoint.
        recipe_file: a recipe to use in place of the one in the checkpoint.
        overrides: KEY, VALUE, ... that change the recipe.

    Returns:
        The recipe to predict with, and the class names, or None if the checkpoint has none.

    Raises:
        ValueError: the checkpoint cannot be read, or the recipe is missing or wrong.
    """
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
    check_recipe(recipe.replaced({"NUM_SHARDS": 1, "PROCESSES_PER_MACHINE": 1}))
    names = checkpoint and checkpoint.class_names
    return recipe, names if names and len(names) == recipe.model.num_classes else None


class Predictor(nn.Module):
    """Trained model that scores clips and videos, in evaluation mode.

    It is on a GPU if the recipe uses one and there is one. `load_model` builds it.

    Attributes:
        recipe: the recipe that it was trained with.
        class_names: names by class number, or None.
        tasks: names of the tasks of models that this class can load.
    """

    tasks: tuple[str, ...] = ("single_label", "multi_label")

    def __init__(
        self, recipe: Recipe, path: Path, class_names: tuple[str, ...] | None = None
    ) -> None:
        """Load the weights of a checkpoint.

        Args:
            recipe: the recipe of the model.
            path: the checkpoint.
            class_names: names by class number.

        Raises:
            ValueError: the weights do not fit the recipe's model, or its task needs another class.
        """
        super().__init__()
        if recipe.task not in self.tasks:
            raise ValueError(
                f"{path} is a model for {TASKS[recipe.task].targets}, which {type(self).__name__} "
                "does not score. A detection model needs multigrid-predict --boxes FILE, or "
                "slowfast_patches.train.predict.boxes.BoxPredictor; other models take no boxes"
            )
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
        """Return the probability of each class, (N, classes).

        Args:
            clips: (N, 3, T, S, S) RGB pixels, uint8, on the recipe's test grid. T is
                DATA.NUM_FRAMES and S is DATA.TEST_CROP_SIZE.
        """
        with self._precision.autocast():
            scores: Tensor = self._model(self._transform.of_pixels(clips))
        return scores

    @torch.no_grad()
    def scores(self, path: str) -> Tensor:
        """Return the probability of each class for a video, (classes,) float64.

        The scores of the views and crops of the section TEST are combined by their mean, or by
        their maximum if DATA.ENSEMBLE_METHOD says so.

        Args:
            path: a video file or a folder of JPEG frames.

        Raises:
            UnreadableVideoError: the video cannot be read. The message says why.
        """
        recipe = self.recipe
        at_once = max(1, recipe.test.batch_size // max(1, recipe.num_gpus))
        device = self._transform.device
        parts = [self(clips.to(device)) for clips in torch.split(self.clips(path), at_once)]
        scores = torch.cat(parts).double().cpu()
        return scores.mean(0) if recipe.data.ensemble_method == "sum" else scores.amax(0)

    def damage(self, path: str) -> str:
        """Describe what of a video cannot be decoded, or return "". Raises as `scores`."""
        limits = reading_limits(self.recipe)
        return find_damage(path, scan(path, limits), limits)

    def clips(self, path: str) -> Tensor:
        """Read the clips that a video is tested on, as `forward` takes them.

        Returns:
            (views × crops, 3, T, S, S) uint8, on the CPU.

        Raises:
            UnreadableVideoError: the video cannot be read.
        """
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
