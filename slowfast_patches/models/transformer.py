"""Video transformers from the package transformers, adapted to train at every shape."""

from __future__ import annotations

import difflib
import json
import logging
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from multigrid import FollowsGrid, convert_positions
from multigrid.positions import check_transformers
from slowfast_patches.config.data_keys import Data
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.models.weights.load import not_finite
from slowfast_patches.utils.errors import mistake_in
from slowfast_patches.utils.tables import format_list

logger = logging.getLogger(__name__)


class _ModelType(NamedTuple):
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


_MODEL_TYPES = {
    "timesformer": _ModelType("image_size", "num_frames", "encoder.layer", ("drop_path",)),
    "videomae": _ModelType(
        "image_size", "num_frames", "encoder.layer", ("attention.output.dropout", "output.dropout")
    ),
    "vivit": _ModelType("image_size", "num_frames", "layers", ("dropout",)),
    "vjepa2": _ModelType("crop_size", "frames_per_clip", "encoder.layer", ("drop_path",)),
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


def build_transformer(recipe: Recipe) -> nn.Module:
    """Build the model of HF.MODEL on the default device.

    If HF.MODEL is a model type, the model is initialised randomly for the number of frames and the
    crop size of the recipe. If HF.MODEL is a folder or a name on the Hugging Face Hub, the model
    has the input size of the stored configuration and starts from the stored weights. A head that
    is missing or has another shape is initialised randomly. Position embeddings are interpolated to
    the shape of the clips (`multigrid.convert_positions`).

    The model has the interface of PySlowFast's models. The input is a list of one pathway
    (N, 3, T, H, W). The output is logits (N, classes) in training and scores in evaluation. Hooks
    convert input and output, so the parameters keep their names.

    Raises:
        ValueError: The package transformers is missing or too old, or the model does not exist.
            Or the configuration or the weights do not match the recipe.
    """
    try:
        from transformers import AutoModelForVideoClassification as Auto

        check_transformers()
    except ImportError as error:
        raise ValueError(
            f"MODEL.ARCH hf needs the package transformers ({error}). Run "
            "pip install 'slowfast-multigrid[transformers]'"
        ) from None
    config, folder = _configuration(recipe)
    has_weights = folder is not None and _has_weights(folder)
    on_meta = torch.get_default_device().type == "meta"
    if folder and has_weights and not on_meta:
        _warn_of_normalisation(folder, recipe.data)
        model = _from_folder(folder, config)
    else:
        if folder and not on_meta:
            logger.info("%s has no *.safetensors, so the model starts from random weights.", folder)
        with mistake_in(f"HF.CONFIG {dict(recipe.hf.config)}"):
            model = Auto.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    if config.model_type == "vjepa2":
        model.base_model.predictor = nn.Identity()
    convert_positions(model)
    _add_drop_path(model, recipe.hf.drop_path)
    model.register_forward_pre_hook(_take_pathways)
    model.register_forward_hook(partial(_return_scores, act=recipe.model.head_act))
    model.mask_seed = recipe.rng_seed  # read by `seed_dropout`
    built: nn.Module = model
    return built


def _take_pathways(model: nn.Module, inputs: tuple[list[Tensor]]) -> tuple[Tensor]:
    """Convert a list of one pathway (N, 3, T, H, W) to pixel values (N, T, 3, H, W)."""
    ((pathway,),) = inputs
    return (pathway.transpose(1, 2),)


def _return_scores(model: nn.Module, inputs: object, output: Any, act: str) -> Tensor:
    """Return the logits of a model output in training, or the scores in evaluation."""
    logits: Tensor = output.logits
    return logits if model.training else scores_of_logits(logits, act)


def scores_of_logits(logits: Tensor, act: str) -> Tensor:
    """Convert logits (N, classes) to scores by the activation `act`: "sigmoid" or "softmax"."""
    return logits.sigmoid() if act == "sigmoid" else logits.softmax(dim=1)


def parameter_depths(model: nn.Module) -> dict[nn.Parameter, int]:
    """Return the depth of each parameter of a model built by `build_transformer`.

    In a model with n layers, the embeddings have depth 0, layer i has depth i + 1, and all
    parameters after the layers have depth n + 1 (BEiT, Bao et al., 2022).
    """
    layers = _layers(model)
    depths = dict.fromkeys(model.parameters(), len(layers) + 1)
    embeddings = [module for module in model.modules() if isinstance(module, FollowsGrid)]
    assert len(embeddings) == 1
    for depth, module in enumerate([*embeddings, *layers]):
        depths.update(dict.fromkeys(module.parameters(), depth))
    return depths


def _layers(model: Any) -> list[nn.Module]:
    path = _MODEL_TYPES[model.config.model_type].layers
    return list(model.base_model.get_submodule(path))


def input_size(model: Any) -> tuple[int, int]:
    """Return the (frames, crop size) for which a model was configured."""
    names = _MODEL_TYPES[model.config.model_type]
    return getattr(model.config, names.frames), getattr(model.config, names.crop)


def _configuration(recipe: Recipe) -> tuple[Any, Path | None]:
    """Return the configuration of HF.MODEL, and the folder of the model or None."""
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
    if (model_type := _MODEL_TYPES.get(default.model_type)) is None:
        supported = format_list(list(_MODEL_TYPES), "or")
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


def _check_names(
    values: Mapping[str, Any], known: Mapping[str, Any], model_type: _ModelType
) -> None:
    """Check that each name in HF.CONFIG exists in the model's configuration and has an effect.

    Args:
        values: Values of HF.CONFIG by name.
        known: Default configuration of the model type.
        model_type: Names of the model type.
    """
    own_keys = {
        model_type.crop: "DATA.TRAIN_CROP_SIZE",
        model_type.frames: "DATA.NUM_FRAMES",
        "num_labels": "MODEL.NUM_CLASSES",
        "drop_path_rate": "HF.DROP_PATH",
    }
    for name, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"HF.CONFIG.{name} is {value}, but must be a finite number.")
        if name in own_keys:
            raise ValueError(f"HF.CONFIG.{name} has no effect. Set {own_keys[name]} instead.")
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1)
            advice = f". Did you mean {nearest[0]}?" if nearest else ""
            raise ValueError(f"HF.CONFIG.{name} is not in the model's configuration{advice}")


def has_start_weights(recipe: Recipe) -> bool:
    """Return whether HF.MODEL has pre-trained weights."""
    folder = _folder(recipe.hf.model)
    return folder is not None and _has_weights(folder)


def _folder(name: str) -> Path | None:
    """Return the folder of HF.MODEL. Download a model of the Hugging Face Hub if necessary.

    Returns:
        The folder, or None if HF.MODEL is a model type.

    Raises:
        ValueError: The model does not exist, or has weights only as a pickle.
    """
    if name in _MODEL_TYPES:
        return None
    folder = Path(name).expanduser()
    if not folder.exists() and _HUB_NAME.fullmatch(name):
        folder = _download(name)
        if not _has_weights(folder):
            raise ValueError(
                f"HF.MODEL {name} has no *.safetensors, and pickles are not downloaded because "
                "they can run code. If you trust the model, load it with transformers, call "
                "save_pretrained, and set HF.MODEL to the new folder."
            )
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"HF.MODEL {name} is neither a folder with a config.json, nor one of "
            f"{', '.join(_MODEL_TYPES)}, nor a name on the Hugging Face Hub such as some-org/model."
        )
    return folder


def _download(name: str) -> Path:
    """Download a model of the Hugging Face Hub unless it is cached, and return the folder."""
    from huggingface_hub import snapshot_download

    logger.info("Downloading HF.MODEL %s from the Hugging Face Hub unless it is cached.", name)
    what = f"HF.MODEL {name} is not a folder, and cannot be downloaded from the Hugging Face Hub"
    with mistake_in(what), _quiet():
        return Path(snapshot_download(name, allow_patterns=_DOWNLOADED))


def _has_weights(folder: Path) -> bool:
    """Return whether a folder has weights as safetensors.

    Raises:
        ValueError: The folder has weights only as a pickle.
    """
    if any(folder.glob("*.safetensors")):
        return True
    if pickled := sorted(folder.glob("*.bin")):
        raise ValueError(
            f"HF.MODEL {folder} has weights only in {pickled[0].name}, a pickle, which can run "
            "code when it is loaded. Convert the weights to safetensors with save_pretrained of "
            "transformers, or remove the file to start from random weights."
        )
    return False


def _from_folder(folder: Path, config: Any) -> Any:
    """Load a model from a folder, and log which weights are initialised randomly or unused."""
    from transformers import AutoModelForVideoClassification

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
    random = ", ".join(f"{name} ({problem})" for name, problem in new.items())
    unused = ", ".join(sorted(info["unexpected_keys"])[:3])
    logger.info(
        "Weights loaded from %s. Initialised randomly: %s. Unused: %s.",
        folder,
        random or "none",
        unused or "none",
    )
    return model


def _warn_of_normalisation(folder: Path, data: Data) -> None:
    """Warn if DATA.MEAN or DATA.STD differ from the values in the model's training."""
    from multigrid.integrations.transformers import processor_colours

    names = ("video_preprocessor_config.json", "preprocessor_config.json")
    file = next((folder / name for name in names if (folder / name).is_file()), None)
    if file is None:
        return
    with mistake_in(str(file)):
        content = json.loads(file.read_text(encoding="utf-8"))
        if "image_mean" not in content:
            return
        trained_with = processor_colours(content)
    for key, ours, theirs in zip(("MEAN", "STD"), (data.mean, data.std), trained_with, strict=True):
        wanted = [round(value, 4) for value in theirs]
        if [round(value, 4) for value in ours] != wanted:
            logger.warning(
                f"DATA.{key} is {list(ours)}, but the model in {folder} was trained with "
                f"{wanted}. Set DATA.{key} to these values."
            )


def _add_drop_path(model: Any, rate: float) -> None:
    """Add drop path to a model: clips skip residual branches at random in training.

    The probability rises linearly from 0 in the first layer to `rate` in the last layer (Huang et
    al., "Deep Networks with Stochastic Depth", 2016).
    """
    if not rate:
        return
    from transformers.models.vjepa2.modeling_vjepa2 import VJEPA2DropPath

    layers = _layers(model)
    ends = _MODEL_TYPES[model.config.model_type].branch_ends
    for number, layer in enumerate(layers):
        share = rate * number / max(1, len(layers) - 1)
        for end in ends:
            layer.set_submodule(end, nn.Sequential(layer.get_submodule(end), VJEPA2DropPath(share)))


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the progress bars and the loading report of transformers."""
    from transformers.utils import logging

    settings: Any = logging
    verbosity = settings.get_verbosity()
    has_progress_bars = settings.is_progress_bar_enabled()
    settings.set_verbosity_error()
    settings.disable_progress_bar()
    try:
        yield
    finally:
        settings.set_verbosity(verbosity)
        if has_progress_bars:
            settings.enable_progress_bar()
