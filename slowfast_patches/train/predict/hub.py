"""Write a trained model as a folder for the Hugging Face Hub, which `load_model` reads back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from safetensors.torch import save

from slowfast_patches.config.key_lists import private_keys
from slowfast_patches.config.recipe import Recipe, default_recipe
from slowfast_patches.datasets.sampling import sampling_of
from slowfast_patches.models.transformer import input_size
from slowfast_patches.models.weights.files import WEIGHTS_FILE, digest_of
from slowfast_patches.train.predict.card import (
    card,
    checkpoint_state,
    facts_of,
    run_of,
    start_argument,
)
from slowfast_patches.train.predict.predictor import Predictor
from slowfast_patches.utils.errors import UserError, mistake_in, writing
from slowfast_patches.utils.files import atomic_write, make_folder, write_text

_WITH_IMAGE_PROCESSOR = ("timesformer", "videomae")
"""Model types whose image processor runs without torchvision."""
_OWN = (WEIGHTS_FILE, "config.json", "recipe.yaml", "metrics.jsonl", "preprocessor_config.json")
"""Files that describe the weights, beside README.md."""


def write_hub_folder(predictor: Predictor, checkpoint: Path, folder: Path) -> None:
    """Write a model, its recipe and a model card to a folder that can be uploaded to the Hub.

    The folder has config.json, model.safetensors, recipe.yaml, README.md and, if the run has one,
    metrics.jsonl. In config.json, "recipe" and "class_names" are for `load_model`. These are also
    the arguments that `huggingface_hub.PyTorchModelHubMixin` passes to a class. For a transformer,
    config.json is the model's configuration as well. VideoMAE and TimeSformer get a
    preprocessor_config.json, so that `transformers.pipeline` can load the folder.

    Args:
        predictor: The model.
        checkpoint: The file with the weights. README.md quotes the accuracy of these weights.
        folder: The folder to write. If it has the same weights already, its README.md is kept.

    Raises:
        ValueError: The folder has another model or a README.md of another model. Or transformers
            cannot load the model, because its own input size differs from the size of the test
            clips.
    """
    defaults = default_recipe()
    recipe = predictor.recipe.replaced({key: defaults[key] for key in private_keys()})
    if Path(recipe.hf.model).is_dir():
        recipe = recipe.replaced({"HF.MODEL": Path(recipe.hf.model).name})
    model: Any = next(predictor.children())
    names = predictor.class_names
    digest = digest_of(model.state_dict())
    _check_folder(folder, digest)
    config = {"recipe": yaml.safe_load(recipe.text), "class_names": names, "weights": digest}
    has_pipeline = False
    if recipe.model.family.is_transformer:
        _check_size(model, recipe)
        config = _config_of_transformer(model, recipe, names) | config
        has_pipeline = model.config.model_type in _WITH_IMAGE_PROCESSOR
    state = checkpoint_state(checkpoint)
    run = run_of(checkpoint, state)
    facts = facts_of(model, recipe, state, run, names)
    _check_own(folder)
    make_folder(folder, "--hub")
    write_text(folder / "config.json", json.dumps(config, indent=2, default=str) + "\n")
    if has_pipeline:
        processor = json.dumps(_image_processor(recipe), indent=2) + "\n"
        write_text(folder / "preprocessor_config.json", processor)
    tensors = {name: value.contiguous() for name, value in model.state_dict().items()}
    with atomic_write(folder / WEIGHTS_FILE) as file:
        file.write(save(tensors, metadata={"format": "pt"}))
    write_text(folder / "recipe.yaml", recipe.text)
    if run is not None and (metrics := run / "metrics.jsonl").exists():
        with writing(folder / metrics.name):
            shutil.copyfile(metrics, folder / metrics.name)
    if not (folder / "README.md").exists():
        text = card(recipe, facts, start_argument(state), has_pipeline=has_pipeline)
        write_text(folder / "README.md", text)


def _check_own(folder: Path) -> None:
    """Raise UserError if a folder has files but no config.json of a model of this package."""
    with mistake_in(f"--hub {folder} cannot be used", OSError, ValueError, TypeError):
        if not folder.exists() or not any(folder.iterdir()):
            return
        config = folder / "config.json"
        is_own = config.is_file() and "recipe" in json.loads(config.read_text(encoding="utf-8"))
    if not is_own:
        raise UserError(
            f"--hub {folder} has other files, which would be mixed with the model. Choose a new "
            "folder."
        )


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


def _config_of_transformer(
    model: Any, recipe: Recipe, names: Sequence[str] | None
) -> dict[str, Any]:
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


def _check_folder(folder: Path, digest: str) -> None:
    """Check that a folder has no other model, and no card that describes another one.

    Raises:
        ValueError: It has.
    """
    there = [name for name in (*_OWN, "README.md") if (folder / name).exists()]
    if not there:
        return
    known = None
    with suppress(OSError, ValueError, AttributeError):
        known = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("weights")
    if known != digest:
        raise UserError(
            f"{folder} has {', '.join(there)} of another model. Remove them, or choose another "
            "folder for --hub."
        )
