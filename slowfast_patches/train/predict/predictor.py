"""Classify videos with a trained model, with the test settings of the model's recipe."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from slowfast_patches.config import check_recipe, parse_recipe
from slowfast_patches.config.recipe import Recipe, stored_keys
from slowfast_patches.config.yaml_text import dump_yaml
from slowfast_patches.datasets.clip_dataset import ClipDataset
from slowfast_patches.datasets.lists.dataset_lists import dataset_of, load_with_classes
from slowfast_patches.datasets.reading.damage import damage_found, forget_damage
from slowfast_patches.datasets.reading.file_status import video_status
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.scanned_video import ScannedVideo
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError
from slowfast_patches.datasets.recipe_sampling import sampling_of
from slowfast_patches.launch.device import with_precision
from slowfast_patches.models.build_model import build_model
from slowfast_patches.models.inputs import InputTransform
from slowfast_patches.models.solver import autocast
from slowfast_patches.models.weights import load_weights
from slowfast_patches.models.weights.weight_files import WEIGHTS_FILE, check_no_program
from slowfast_patches.registry import TASKS
from slowfast_patches.tasks import task_of
from slowfast_patches.train.checkpoint import checkpoint_of, load
from slowfast_patches.train.record.result_tables import names_of_data
from slowfast_patches.train.resume import check_same_scores
from slowfast_patches.utils.errors import UserError, mistake_in
from slowfast_patches.utils.storage import Status


def load_model(
    checkpoint: str | Path, recipe_file: Path | None = None, overrides: Sequence[object] = ()
) -> Predictor:
    """Load a trained model with its recipe and class names.

    No code from the checkpoint is executed.

    Args:
        checkpoint: A checkpoint file, or the OUTPUT_DIR of a run. From an OUTPUT_DIR, the best
            checkpoint is loaded, or the last if there is no best checkpoint.
        recipe_file: Recipe to use instead of the recipe in the checkpoint. Weights that this
            package did not write need one.
        overrides: KEY, VALUE, KEY, VALUE, ... to replace in the recipe, such as "NUM_GPUS", 0.

    Raises:
        ValueError: There is no checkpoint, the checkpoint cannot be read, the recipe is missing, or
            the model needs other inputs than clips.
    """
    path = checkpoint_of(checkpoint)
    recipe, names = read_checkpoint(path, recipe_file, overrides)
    require_clip_scores(recipe, path)
    return Predictor(recipe, path, names or names_of_data(recipe))


def require_clip_scores(recipe: Recipe, path: Path) -> None:
    """Check that the model of a checkpoint takes only clips as input.

    Raises:
        ValueError: The network of the task needs other inputs than clips.
    """
    if not TASKS[recipe.task].scores_clips:
        raise UserError(
            f"{path} is a model for {recipe.task}, which does not score whole videos. Use "
            "multigrid-predict --targets FILE without --output, --export and --hub."
        )


def read_checkpoint(
    path: Path, recipe_file: Path | None = None, overrides: Sequence[object] = ()
) -> tuple[Recipe, tuple[str, ...] | None]:
    """Read the recipe and the class names of a checkpoint.

    Args:
        path: The checkpoint file.
        recipe_file: Recipe to use instead of the recipe in the checkpoint.
        overrides: KEY, VALUE, KEY, VALUE, ... to replace in the recipe.

    Returns:
        (recipe, class names). The names are None unless the checkpoint has a name for each class.

    Raises:
        ValueError: The checkpoint cannot be read, or the recipe is missing or has a mistake.
    """
    check_no_program(path)
    text, names = "", None
    try:
        text, names = _stored(path)
    except UserError as error:  # not written by the trainer, but `Predictor` may read the weights
        if recipe_file is None:
            raise UserError(
                f"{error}\nIf the file contains only weights, give their recipe: --cfg FILE"
            ) from error
    if recipe_file is not None:
        recipe = load_with_classes(recipe_file, overrides)
    else:
        recipe = parse_recipe(text, f"the config in {path}", overrides)
        of_folder = recipe.model.spec.of_folder
        if path.name == WEIGHTS_FILE and of_folder is not None:
            recipe = of_folder(recipe, path.parent)
    check_recipe(recipe.replaced({"PROCESSES_PER_MACHINE": 1}))
    return recipe, names if names and len(names) == recipe.model.num_classes else None


def _stored(path: Path) -> tuple[str, tuple[str, ...] | None]:
    """Return the recipe as YAML and the class names from a checkpoint or a folder for the Hub.

    Raises:
        ValueError: The file or the config.json beside it cannot be read, or has no recipe.
    """
    if path.name != WEIGHTS_FILE:
        checkpoint = load(path)
        return checkpoint.cfg, checkpoint.class_names
    file = path.with_name("config.json")
    wrong = (OSError, ValueError, LookupError, TypeError, AttributeError)
    with mistake_in(f"{file} has no recipe of this package", *wrong):
        config = json.loads(file.read_text(encoding="utf-8"))
        names = config["class_names"]
        # Published folders outlive keys, so leave out removed keys.
        return dump_yaml(stored_keys(config["recipe"])), names and tuple(names)


class Predictor(nn.Module):
    """Trained model that scores clips and videos, in evaluation mode.

    The model is on a GPU if NUM_GPUS is above 0 and a GPU is available. Build a predictor with
    `load_model`.

    Attributes:
        recipe: The recipe of the model.
        class_names: Class names, in the order of the class indices, or None.
    """

    def __init__(
        self, recipe: Recipe, path: Path, class_names: tuple[str, ...] | None = None
    ) -> None:
        """Build the model of a recipe, and load the weights of a checkpoint.

        Args:
            recipe: The recipe of the model.
            path: The checkpoint file.
            class_names: Class names, in the order of the class indices.

        Raises:
            ValueError: The weights do not match the model, or the recipe differs from that in the
                checkpoint (`check_same_scores`).
        """
        super().__init__()
        check_same_scores(recipe, path)
        on_gpu = recipe.num_gpus > 0 and torch.cuda.is_available()
        self.recipe = recipe = with_precision(recipe, on_gpu)
        self.class_names = class_names
        device = torch.device("cuda" if on_gpu else "cpu")
        self._model: nn.Module = build_model(recipe).to(device)
        load_weights(self._model, path, complete=True)
        self._transform = InputTransform.of_recipe(recipe, device)
        self._device = device
        self._last: tuple[str, Status | None, ScannedVideo] | None = None
        self._task = task_of(recipe)
        self.eval()

    def forward(self, clips: Tensor) -> Tensor:
        """Return the probability of each class, (N, classes).

        Args:
            clips: RGB pixels, (N, 3, T, S, S) uint8. T is DATA.NUM_FRAMES and S is
                DATA.TEST_CROP_SIZE.
        """
        with autocast(self.recipe, self._device):
            scores: Tensor = self._model(self._transform.of_pixels(clips))
        return scores

    @torch.no_grad()
    def score(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the scores of a mini-batch.

        Args:
            batch: `clips` and `flips`, and also `labels` if the network of the task needs them.
        """
        arguments = self._task.arguments(batch, self._transform, self._device)
        with autocast(self.recipe, self._device):
            scores: Tensor = self._model(*arguments)
        return scores

    @torch.no_grad()
    def scores(self, path: str) -> Tensor:
        """Return the probability of each class for a video, (classes,) float64.

        The video is scored on `clips(path)`. Return the mean over the clips, or the maximum if
        DATA.ENSEMBLE_METHOD is "max".

        Args:
            path: A video file or a folder of JPEG frames.

        Raises:
            UnreadableVideoError: None of the clips can be read. The message states the reason.
        """
        test = self.recipe.test
        at_once = max(1, test.batch_size // max(1, self.recipe.num_gpus))
        parts = [self(clips.to(self._device)) for clips in torch.split(self.clips(path), at_once)]
        scores = torch.cat(parts).double().cpu()
        return scores.mean(0) if self.recipe.data.ensemble_method == "sum" else scores.amax(0)

    def clips(self, path: str) -> Tensor:
        """Read the clips of a video on which the test scores the video.

        Args:
            path: A video file or a folder of JPEG frames.

        Returns:
            Input of `forward` on the CPU: TEST.NUM_ENSEMBLE_VIEWS × TEST.NUM_SPATIAL_CROPS clips.
            Unreadable clips are left out, as in the test.

        Raises:
            UnreadableVideoError: None of the clips can be read. The message states the reason.
        """
        recipe = self.recipe
        scanned = self._scan(path)
        if dataset_of(recipe, "test").counts_frames:
            video = scanned.video._replace(fps=float(recipe.data.target_fps))
            scanned = dataclasses.replace(scanned, video=video)
        dataset = ClipDataset(
            [_ScannedFile(path, scanned)],
            None,
            sampling_of(recipe, "test"),
            seed=0,
            views=(recipe.test.num_ensemble_views, recipe.test.num_spatial_crops),
            evaluation_crop=recipe.data.test_crop_size,
            split="test",
        )
        batch = dataset.__getitems__(range(len(dataset)))
        if not len(batch["clips"]):
            raise UnreadableVideoError(batch["failures"][0][1])
        return batch["clips"].permute(0, 4, 1, 2, 3)

    def warnings(self, path: str) -> list[str]:
        """Describe which part of a video cannot be decoded, and whether it has too few frames.

        Damage inside pictures is found only if `clips` or `scores` has read them before.

        Raises:
            UnreadableVideoError: The video cannot be read.
        """
        scanned = self._scan(path)
        texts = list[str]()
        if scanned.damage:
            texts.append(f"{scanned.damage}. Only the readable part is used")
        elif damage := damage_found(path):
            texts.append(f"is damaged: {damage}. Its scores may come from wrong pictures")
        if scanned.timing:
            texts.append(scanned.timing)
        return texts

    def _scan(self, path: str) -> ScannedVideo:
        """Scan a video, unless it is the last scanned one and has not changed since."""
        status = video_status([path]).get(path)
        if self._last is None or self._last[:2] != (path, status):
            forget_damage(path)
            self._last = (path, status, scan(path))
        return self._last[2]


class _ScannedFile(NamedTuple):
    """A video that is in no list."""

    path: str
    result: ScannedVideo
    label: int = 0

    def scanned(self) -> ScannedVideo:
        return self.result
