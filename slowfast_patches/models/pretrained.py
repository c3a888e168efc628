"""Configurations and weights of the package transformers, from folders and the Hugging Face Hub."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from slowfast_patches.config.data_keys import Data
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.models.weights.load import not_finite
from slowfast_patches.utils.errors import mistake_in
from slowfast_patches.utils.tables import format_list

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


def configuration(recipe: Recipe) -> tuple[Any, Path | None]:
    """Return the configuration of HF.MODEL, and the folder of the model or None.

    Raises:
        ValueError: The model does not exist or has another type, or HF.CONFIG has a mistake.
    """
    from transformers import AutoConfig

    name = recipe.hf.model
    values = dict(recipe.hf.config)
    folder = _folder(name)
    if folder is None:
        default = AutoConfig.for_model(name)
    else:
        with mistake_in(f"HF.MODEL {name}"):
            default = AutoConfig.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
    if (model_type := MODEL_TYPES.get(default.model_type)) is None:
        supported = format_list(list(MODEL_TYPES), "or")
        raise ValueError(
            f"HF.MODEL {name} has the type {default.model_type}, which is not supported. Set "
            f"HF.MODEL to a model of the type {supported}."
        )
    _check_names(values, type(default)().to_dict(), model_type)
    if folder is None:
        values[model_type.crop] = recipe.data.train_crop_size
        values[model_type.frames] = recipe.data.num_frames
    with mistake_in(f"HF.CONFIG {dict(recipe.hf.config)}"):
        config = type(default).from_dict(default.to_dict(), **values)
    config.num_labels = recipe.model.num_classes
    return config, folder


def _check_names(values: Iterable[str], known: Iterable[str], model_type: ModelType) -> None:
    """Check that each name in HF.CONFIG exists in the model's configuration and has an effect."""
    own_keys = {
        model_type.crop: "DATA.TRAIN_CROP_SIZE",
        model_type.frames: "DATA.NUM_FRAMES",
        "num_labels": "MODEL.NUM_CLASSES",
        "drop_path_rate": "HF.DROP_PATH",
    }
    for name in values:
        if name in own_keys:
            raise ValueError(f"HF.CONFIG.{name} has no effect. Set {own_keys[name]} instead.")
        if name not in known:
            raise ValueError(f"HF.CONFIG.{name} is not in the model's configuration.")


def has_start_weights(recipe: Recipe) -> bool:
    """Return whether HF.MODEL has pre-trained weights."""
    folder = _folder(recipe.hf.model)
    return folder is not None and has_weights(folder)


def has_weights(folder: Path) -> bool:
    """Return whether a folder has weights as safetensors."""
    return any(folder.glob("*.safetensors"))


def _folder(name: str) -> Path | None:
    """Return the folder of HF.MODEL. Download a model of the Hugging Face Hub if necessary.

    Returns:
        The folder, or None if HF.MODEL is a model type.

    Raises:
        ValueError: The model does not exist, or has weights only as a pickle.
    """
    if name in MODEL_TYPES:
        return None
    folder = Path(name).expanduser()
    is_on_hub = not folder.exists() and _HUB_NAME.fullmatch(name) is not None
    if is_on_hub:
        from huggingface_hub import snapshot_download

        logger.info("Downloading HF.MODEL %s from the Hugging Face Hub unless it is cached.", name)
        with mistake_in(f"HF.MODEL {name} is not a folder, and cannot be downloaded"):
            folder = Path(snapshot_download(name, allow_patterns=_DOWNLOADED))
    if (is_on_hub or any(folder.glob("*.bin"))) and not has_weights(folder):
        raise ValueError(
            f"HF.MODEL {name} has no *.safetensors. Pickles are not loaded, because they can run "
            "code. If you trust the model, load it with transformers, call save_pretrained, and "
            "set HF.MODEL to the new folder."
        )
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"HF.MODEL {name} is neither a folder with a config.json, nor one of "
            f"{', '.join(MODEL_TYPES)}, nor a name on the Hugging Face Hub such as some-org/model."
        )
    return folder


def load_folder(folder: Path, config: Any, data: Data) -> Any:
    """Load a model from a folder, and log which weights are initialised randomly or unused.

    Raises:
        ValueError: The weights cannot be read, or do not fit the configuration.
    """
    from transformers import AutoModelForVideoClassification

    _warn_of_normalisation(folder, data)
    with mistake_in(f"HF.MODEL {folder}"), _quiet():
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
    new = dict.fromkeys(info["missing_keys"], "missing")
    new |= {
        name: f"of shape {tuple(found)}, not {tuple(wanted)}"
        for name, found, wanted in info["mismatched_keys"]
    }
    new = {name: new[name] for name in sorted(new) if not name.startswith(_PREDICTOR)}
    for name, problem in new.items():
        if not name.startswith(HEAD):
            raise ValueError(
                f"HF.MODEL {folder}: in the weights, {name} is {problem}. Correct HF.CONFIG or "
                "config.json, which describe a different model."
            )
    if problem := not_finite(model.named_parameters()):
        raise ValueError(f"HF.MODEL {folder} {problem}")
    random = ", ".join(f"{name} ({problem})" for name, problem in new.items()) or "none"
    unused = ", ".join(sorted(info["unexpected_keys"])[:3]) or "none"
    text = "Weights loaded from %s. Initialised randomly: %s. Unused: %s."
    logger.info(text, folder, random, unused)
    return model


def _warn_of_normalisation(folder: Path, data: Data) -> None:
    """Warn if DATA.MEAN or DATA.STD differ from the values in the model's training."""
    from multigrid.integrations.transformers import processor_colours

    for file in sorted(folder.glob("*preprocessor_config.json"), reverse=True)[:1]:
        with mistake_in(str(file)):
            content = json.loads(file.read_text(encoding="utf-8"))
            trained_with = processor_colours(content) if "image_mean" in content else ()
        pairs = zip(("MEAN", "STD"), (data.mean, data.std), trained_with, strict=False)
        for key, ours, theirs in pairs:
            wanted = [round(value, 4) for value in theirs]
            if [round(value, 4) for value in ours] != wanted:
                logger.warning(
                    f"DATA.{key} is {list(ours)}, but the model in {folder} was trained with "
                    f"{wanted}. Set DATA.{key} to these values."
                )


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the loading report of transformers."""
    from transformers.utils import logging

    settings: Any = logging
    verbosity = settings.get_verbosity()
    settings.set_verbosity_error()
    try:
        yield
    finally:
        settings.set_verbosity(verbosity)
