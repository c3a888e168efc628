"""Pretrained models of the package transformers, from folders and the Hugging Face Hub."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from slowfast_patches.config.data_keys import Data
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.extras.transformers.keys import HfKeys
from slowfast_patches.models.weights.load_weights import not_finite
from slowfast_patches.utils.errors import UserError, mistake_in
from slowfast_patches.utils.tables import format_list, shorten_list

logger = logging.getLogger(__name__)


class ModelType(NamedTuple):
    """Names that differ between model types.

    Attributes:
        crop: Attribute of the configuration that has the crop size.
        frames: Attribute of the configuration that has the number of frames.
        layers: Path of the list of layers in the base model.
        branch_ends: Path of the last module of each residual branch, relative to the layer.
    """

    crop: str
    frames: str
    layers: str
    branch_ends: tuple[str, ...]


MODEL_TYPES = {
    "timesformer": ModelType("image_size", "num_frames", "encoder.layer", ("drop_path",)),
    "videomae": ModelType(
        "image_size", "num_frames", "encoder.layer", ("attention.output.dropout", "output.dropout")
    ),
    "vivit": ModelType("image_size", "num_frames", "layers", ("dropout",)),
    "vjepa2": ModelType("crop_size", "frames_per_clip", "encoder.layer", ("drop_path",)),
}

HEAD = ("classifier.", "fc_norm.", "pooler.")
"""Prefixes of the names of head parameters. Pre-trained weights may lack these parameters."""
_PREDICTOR = "vjepa2.predictor."
"""Prefix of the parameters that V-JEPA 2 uses only in pre-training. `build_transformer` drops them,
so weights that are saved after training lack them."""

_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_DOWNLOADED = [
    "config.json",
    "*preprocessor_config.json",
    "*.safetensors",
    "*.safetensors.index.json",
]
"""Patterns of the files to download. Such files contain only data and cannot run code."""


def weight_files(recipe: Recipe) -> list[Path] | None:
    """Return the files of HF.MODEL that determine its initial weights.

    None means that HF.MODEL is a model type, whose initial weights are random.
    """
    name = HfKeys.of(recipe).model
    if name in MODEL_TYPES:
        return None
    kinds = (".safetensors", ".bin", ".json")
    folder = Path(name)
    return [p for p in sorted(folder.iterdir()) if p.suffix in kinds] if folder.is_dir() else []


def of_folder(recipe: Recipe, folder: Path) -> Recipe:
    """Return the recipe of a model that was published and is now in a folder."""
    return recipe.replaced({"HF.MODEL": str(folder)})


def configuration(recipe: Recipe) -> tuple[Any, Path | None]:
    """Return the configuration of HF.MODEL, and the folder of the model or None.

    Raises:
        ValueError: The model does not exist or has another type, or HF.CONFIG has a mistake.
    """
    from transformers import AutoConfig

    name = HfKeys.of(recipe).model
    folder = _folder(name)
    with mistake_in(f"HF.MODEL {name}", Exception):
        default = (
            AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            if folder
            else AutoConfig.for_model(name)
        )
    if (model_type := MODEL_TYPES.get(default.model_type)) is None:
        raise UserError(
            f"HF.MODEL {name} has the type {default.model_type}, which is not supported. Set "
            f"HF.MODEL to a model of the type {format_list(MODEL_TYPES, 'or')}."
        )
    values = dict(HfKeys.of(recipe).config)
    of_recipe = {model_type.crop, model_type.frames, "num_labels", "drop_path_rate"}
    if wrong := values.keys() - (default.to_dict().keys() - of_recipe):
        raise UserError(
            f"HF.CONFIG.{wrong.pop()} is not in the model's configuration, or follows from "
            "another key: DATA.TRAIN_CROP_SIZE, DATA.NUM_FRAMES, MODEL.NUM_CLASSES or HF.DROP_PATH."
        )
    if folder is None:
        values[model_type.crop] = recipe.data.train_crop_size
        values[model_type.frames] = recipe.data.num_frames
    with mistake_in(f"HF.CONFIG {dict(HfKeys.of(recipe).config)}", Exception):
        config = type(default).from_dict(default.to_dict(), **values)
    config.num_labels = recipe.model.num_classes
    return config, folder


def _folder(name: str) -> Path | None:
    """Return the folder of HF.MODEL. Download a model of the Hugging Face Hub if necessary.

    Returns:
        The folder, or None if HF.MODEL is a model type.

    Raises:
        ValueError: The model does not exist, or has no weights as safetensors.
    """
    if name in MODEL_TYPES:
        return None
    folder = Path(name).expanduser()
    if not folder.exists() and _HUB_NAME.fullmatch(name):
        from huggingface_hub import snapshot_download

        logger.info("Downloading HF.MODEL %s from the Hugging Face Hub unless it is cached.", name)
        with mistake_in(f"HF.MODEL {name} is not a folder, and cannot be downloaded", Exception):
            folder = Path(snapshot_download(name, allow_patterns=_DOWNLOADED))
    if not (folder / "config.json").is_file():
        raise UserError(
            f"HF.MODEL {name} is neither a folder with a config.json, nor one of "
            f"{', '.join(MODEL_TYPES)}, nor a name on the Hugging Face Hub such as some-org/model."
        )
    if not any(folder.glob("*.safetensors")):
        raise UserError(
            f"HF.MODEL {name} has no *.safetensors. Pickles are not loaded, because they can run "
            "code. If you trust the model, load it with transformers, call save_pretrained, and "
            "set HF.MODEL to the new folder."
        )
    return folder


def load_folder(folder: Path, config: Any, data: Data) -> Any:
    """Load a model from a folder, and log which weights are initialised randomly or unused.

    Raises:
        ValueError: The weights cannot be read, or do not fit the configuration.
    """
    from transformers import AutoModelForVideoClassification
    from transformers.utils import logging as transformers_logging

    _warn_of_normalisation(folder, data)
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    with mistake_in(f"HF.MODEL {folder}", Exception):
        model, info = AutoModelForVideoClassification.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # checked below, with a clearer message
            output_loading_info=True,
        )
    mismatched = {name for name, *_ in info["mismatched_keys"]}
    new = sorted(n for n in mismatched | info["missing_keys"] if not n.startswith(_PREDICTOR))
    if unfit := [name for name in new if not name.startswith(HEAD)]:
        raise UserError(
            f"HF.MODEL {folder}: the weights lack {shorten_list(unfit)}, or have them in another "
            "shape. Correct HF.CONFIG or config.json, which describe a different model."
        )
    if problem := not_finite(model.named_parameters()):
        raise UserError(f"HF.MODEL {folder} {problem}")
    random, unused = shorten_list(new), shorten_list(sorted(info["unexpected_keys"]))
    text = "Weights loaded from %s. Initialised randomly: %s. Unused: %s."
    logger.info(text, folder, random or "none", unused or "none")
    return model


def _warn_of_normalisation(folder: Path, data: Data) -> None:
    """Warn if DATA.MEAN or DATA.STD differ from the values in the model's training."""
    from multigrid.integrations.transformers import processor_colours

    for file in sorted(folder.glob("*preprocessor_config.json"), reverse=True)[:1]:
        with mistake_in(str(file), OSError, ValueError, TypeError, LookupError, AttributeError):
            content = json.loads(file.read_text(encoding="utf-8"))
            known = processor_colours(content) if "image_mean" in content else ()
        for key, ours, theirs in zip(("MEAN", "STD"), (data.mean, data.std), known, strict=False):
            if not np.allclose(ours, theirs, atol=1e-4):
                logger.warning(
                    f"DATA.{key} is {list(ours)}, but the model in {folder} was trained with "
                    f"{list(theirs)}. Set DATA.{key} to these values."
                )
