"""Files in a folder for the Hugging Face Hub, so that the package transformers can load a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.recipe_sampling import sampling_of
from slowfast_patches.extras.transformers.keys import HfKeys
from slowfast_patches.extras.transformers.transformer_model import input_size
from slowfast_patches.utils.errors import UserError

_WITH_IMAGE_PROCESSOR = ("timesformer", "videomae")
"""Model types whose image processor runs without torchvision."""


def published(
    model: Any, recipe: Recipe, names: Sequence[str] | None
) -> tuple[Recipe, dict[str, dict[str, Any]]]:
    """Return the recipe to publish, and the content of JSON files beside the weights.

    config.json is the model's configuration. VideoMAE and TimeSformer get a
    preprocessor_config.json, so that `transformers.pipeline` can load the folder.

    Raises:
        UserError: The model's own input size differs from the size of the test clips.
    """
    _check_size(model, recipe)
    folder = Path(HfKeys.of(recipe).model)
    if folder.is_dir():  # whose path is private
        recipe = recipe.replaced({"HF.MODEL": folder.name})
    files = {"config.json": _model_config(model, recipe, names)}
    if model.config.model_type in _WITH_IMAGE_PROCESSOR:
        files["preprocessor_config.json"] = _image_processor(recipe)
    return recipe, files


def _check_size(model: Any, recipe: Recipe) -> None:
    """Raise ValueError if the test clips do not have the model's own input size."""
    frames, crop = size = input_size(model)
    wanted = (recipe.data.num_frames, recipe.data.test_crop_size)
    if size != wanted:
        raise UserError(
            f"The model itself takes {frames} frames of {crop}² pixels, but the test has "
            f"{wanted[0]} frames of {wanted[1]}². For --hub, set DATA.NUM_FRAMES {frames} and "
            f"DATA.TEST_CROP_SIZE {crop}."
        )


def _model_config(model: Any, recipe: Recipe, names: Sequence[str] | None) -> dict[str, Any]:
    """Return the configuration from which the package transformers builds the model."""
    kind = "multi" if recipe.model.head_act == "sigmoid" else "single"
    config: dict[str, Any] = model.config.to_dict() | {
        "architectures": [type(model).__name__],
        "problem_type": f"{kind}_label_classification",
    }
    if names:
        config["id2label"] = dict(enumerate(names))
        config["label2id"] = {name: number for number, name in enumerate(names)}
    return config


def _image_processor(recipe: Recipe) -> dict[str, Any]:
    """Return the configuration of an image processor that prepares clips as in the test."""
    data = recipe.data
    crop = data.test_crop_size
    sampling = sampling_of(recipe, "test")
    short = sampling.evaluation_short_side(crop, recipe.test.num_spatial_crops)
    return {
        "image_processor_type": "VideoMAEImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": short},
        "do_center_crop": True,
        "crop_size": {"height": crop, "width": crop},
        "do_rescale": True,
        "do_normalize": True,
        "image_mean": list(data.mean),
        "image_std": list(data.std),
    }
