"""Video transformers of the package transformers, built so that they train at every shape."""

from __future__ import annotations

import difflib
import json
import logging
import math
import re
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from multigrid import FollowsGrid, convert_positions
from slowfast_patches.config.recipe import Data, Recipe
from slowfast_patches.models.layers.dropout import SeededMasks
from slowfast_patches.models.weights.fit import not_finite
from slowfast_patches.utils.tables import format_list

__all__ = ["HEAD", "build_transformer", "has_start_weights", "parameter_depths"]

logger = logging.getLogger(__name__)


class _Kind(NamedTuple):
    """A type of model: what its configuration calls the sides and the frames of a clip, where its
    layers are, and in a layer the modules that residual branches end with."""

    crop: str
    frames: str
    layers: str
    ends: tuple[str, ...]


_KINDS = {
    "timesformer": _Kind("image_size", "num_frames", "encoder.layer", ("drop_path",)),
    "videomae": _Kind(
        "image_size", "num_frames", "encoder.layer", ("attention.output.dropout", "output.dropout")
    ),
    "vivit": _Kind("image_size", "num_frames", "layers", ("dropout",)),
    "vjepa2": _Kind("crop_size", "frames_per_clip", "encoder.layer", ("drop_path",)),
}

_SILENT_SECONDS = 30.0
"""How long the Hugging Face Hub may take to answer."""
HEAD = ("classifier.", "fc_norm.", "pooler.")
"""What a file of weights from pre-training need not have."""


_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_FETCHED = ["config.json", "*preprocessor_config.json", "*.safetensors", "*.safetensors.index.json"]
"""Files that are data: nothing in them can be run."""


class _TakesPathways(SeededMasks):
    """Makes a model for classification of `transformers` one that is called as the host's are; its
    parameters keep their names."""

    several_labels: bool

    def forward(self: Any, pathways: list[Tensor]) -> Tensor:
        """One pathway (N, 3, T, H, W) to logits (N, classes) in training, to scores, as
        MODEL.HEAD_ACT has them, in evaluation."""
        logits: Tensor = super().forward(pathways[0].transpose(1, 2)).logits  # type: ignore[misc]
        if self.training:
            return logits
        return logits.sigmoid() if self.several_labels else logits.softmax(dim=1)


def build_transformer(recipe: Recipe) -> nn.Module:
    """The model of HF.MODEL for clips of the recipe, on the default device.

    A type of model starts from scratch and has the recipe's grid. A folder's has the grid of its
    configuration and starts from its weights; those of other names or shapes are refused, but for
    the head, which is made anew for another number of classes. Positions follow the grid of the
    clips (`multigrid.convert_positions`).

    Raises:
        ValueError: transformers is not installed, there is no such model, or its configuration or
            weights do not fit; the message has the way out.
    """
    try:
        from transformers import AutoModelForVideoClassification as Auto
    except ImportError as error:
        raise ValueError(
            f"MODEL.ARCH hf needs the package transformers ({error}): "
            "pip install 'slowfast-multigrid[transformers]'"
        ) from None
    config, folder = _configuration(recipe)
    has_weights = folder is not None and _has_weights(folder)
    on_meta = torch.get_default_device().type == "meta"
    if folder and has_weights and not on_meta:
        _warn_of_colours(folder, recipe.data)
        model = _from_folder(folder, config)
    else:
        if folder and not on_meta:
            logger.info("%s has no *.safetensors: the model starts from scratch", folder)
        with _one_line(f"HF.CONFIG {dict(recipe.hf.config)}"):
            model = Auto.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    if config.model_type == "vjepa2":
        model.base_model.predictor = nn.Identity()  # of its pre-training
    convert_positions(model)
    _add_drop_path(model, recipe.hf.drop_path)
    kind = type(model)
    model.__class__ = type(f"Pathway{kind.__name__}", (_TakesPathways, kind), {})
    model.mask_seed = recipe.rng_seed
    model.several_labels = recipe.model.head_act == "sigmoid"
    built: nn.Module = model
    return built


def parameter_depths(model: nn.Module) -> dict[nn.Parameter, int]:
    """How deep in a model of `build_transformer` a parameter is: 0 for embeddings, i + 1 in layer i
    of n, n + 1 behind them (BEiT, Bao et al., 2022)."""
    layers = _layers(model)
    depths = dict.fromkeys(model.parameters(), len(layers) + 1)
    embeddings = [module for module in model.modules() if isinstance(module, FollowsGrid)]
    assert len(embeddings) == 1
    for depth, module in enumerate([*embeddings, *layers]):
        depths.update(dict.fromkeys(module.parameters(), depth))
    return depths


def _layers(model: Any) -> list[nn.Module]:
    path = _KINDS[model.config.model_type].layers
    return list(model.base_model.get_submodule(path))


def _configuration(recipe: Recipe) -> tuple[Any, Path | None]:
    """The model's configuration, and the folder of HF.MODEL if it is one."""
    from transformers import AutoConfig

    name = recipe.hf.model
    values = dict(recipe.hf.config)
    folder = _folder(name)
    if folder is None:
        default = AutoConfig.for_model(name)
    else:
        with _one_line(f"HF.MODEL {name}"):
            default = AutoConfig.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
    if (kind := _KINDS.get(default.model_type)) is None:
        known = format_list(list(_KINDS), "or")
        raise ValueError(f"HF.MODEL {name} is a {default.model_type}, and not {known}")
    _check_names(values, type(default)().to_dict(), kind)
    if folder is None:
        values |= {kind.crop: recipe.data.train_crop_size, kind.frames: recipe.data.num_frames}
    with _one_line(f"HF.CONFIG {dict(recipe.hf.config)}"):
        config = type(default).from_dict(default.to_dict(), **values)
    config.num_labels = recipe.model.num_classes
    return config, folder


def _check_names(values: Mapping[str, Any], known: Mapping[str, Any], kind: _Kind) -> None:
    follows = {
        kind.crop: "DATA.TRAIN_CROP_SIZE",
        kind.frames: "DATA.NUM_FRAMES",
        "num_labels": "MODEL.NUM_CLASSES",
        "drop_path_rate": "HF.DROP_PATH",
    }
    for name, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"HF.CONFIG.{name} is {value}; give a finite number")
        if name in follows:
            raise ValueError(f"HF.CONFIG.{name} has no effect; write {follows[name]}")
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1)
            advice = f"; did you mean {nearest[0]}?" if nearest else ""
            raise ValueError(f"HF.CONFIG.{name} is no value of the model's configuration{advice}")


def has_start_weights(recipe: Recipe) -> bool:
    """Whether HF.MODEL is a folder with weights to start from."""
    folder = _folder(recipe.hf.model)
    return folder is not None and _has_weights(folder)


def _folder(name: str) -> Path | None:
    """The folder that HF.MODEL names, or that has what was fetched by this name; None for a type of
    model. Raises ValueError where there is neither."""
    if name in _KINDS:
        return None
    folder = Path(name).expanduser()
    if not folder.exists() and _HUB_NAME.fullmatch(name):
        folder = _fetched(name)
        if not _has_weights(folder):
            raise ValueError(
                f"HF.MODEL {name} has no *.safetensors, and a pickle is not fetched; load it with "
                "transformers and give the folder that its save_pretrained makes"
            )
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"HF.MODEL {name} is neither a folder with a config.json, nor one of "
            f"{', '.join(_KINDS)}, nor a name such as some-org/model on the Hugging Face Hub"
        )
    return folder


def _fetched(name: str) -> Path:
    """The configuration and weights of a model on the Hugging Face Hub, fetched unless the cache of
    huggingface_hub has them."""
    from huggingface_hub import HfApi, snapshot_download

    logger.info("HF.MODEL %s: fetched from the Hugging Face Hub, unless its cache has it", name)
    with _one_line(f"HF.MODEL {name}: there is no such folder, and it cannot be fetched"), _quiet():
        is_silent = False
        try:  # snapshot_download waits for ever for a server that does not answer
            HfApi().model_info(name, timeout=_SILENT_SECONDS)
        except Exception as error:  # what else is wrong, it reports
            is_silent = "timed out" in str(error)
        if is_silent:
            logger.warning("the Hub does not answer within %g s: %s", _SILENT_SECONDS, name)
        return Path(snapshot_download(name, allow_patterns=_FETCHED, local_files_only=is_silent))


def _has_weights(folder: Path) -> bool:
    if any(folder.glob("*.safetensors")):
        return True
    if pickled := sorted(folder.glob("*.bin")):
        raise ValueError(
            f"HF.MODEL {folder} has its weights in {pickled[0].name}, a pickle, which may run what "
            "is in it; save them as safetensors (transformers' save_pretrained does), or move the "
            "file away to start from scratch"
        )
    return False


def _from_folder(folder: Path, config: Any) -> Any:
    """Load the model with the weights of a folder; logs what is new, or not used."""
    from transformers import AutoModelForVideoClassification

    with _one_line(f"HF.MODEL {folder}"), _quiet():
        model, info = AutoModelForVideoClassification.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # they are looked at below
            output_loading_info=True,
        )
    new = dict.fromkeys(info["missing_keys"], "none")
    new |= {name: f"{tuple(a)}, not {tuple(b)}" for name, a, b in info["mismatched_keys"]}
    for name, there in sorted(new.items()):  # transformers gives sets
        if not name.startswith(HEAD):
            raise ValueError(
                f"HF.MODEL {folder}: its weights have {there} for {name}; its config.json, or "
                "HF.CONFIG, is of another model"
            )
    if problem := not_finite(model.named_parameters()):
        raise ValueError(f"HF.MODEL {folder} {problem}")
    made = ", ".join(f"{name} ({there})" for name, there in sorted(new.items()))
    unused = ", ".join(sorted(info["unexpected_keys"])[:3])
    logger.info(
        "%s: weights loaded; made anew: %s; unused: %s", folder, made or "none", unused or "none"
    )
    return model


def _warn_of_colours(folder: Path, data: Data) -> None:
    """Warn where clips are not normalised as the weights of a folder know them."""
    from multigrid.integrations.transformers import processor_colours

    names = ("video_preprocessor_config.json", "preprocessor_config.json")
    file = next((folder / name for name in names if (folder / name).is_file()), None)
    if file is None:
        return
    with _one_line(str(file)):
        content = json.loads(file.read_text(encoding="utf-8"))
        if "image_mean" not in content:
            return
        known = processor_colours(content)
    for key, ours, theirs in zip(("MEAN", "STD"), (data.mean, data.std), known, strict=True):
        wanted = [round(value, 4) for value in theirs]
        if [round(value, 4) for value in ours] != wanted:
            logger.warning(
                f"DATA.{key} is {list(ours)}, and the model in {folder} was trained with {wanted}: "
                "set it so"
            )


def _add_drop_path(model: Any, rate: float) -> None:
    """Have clips skip residual branches (Huang et al., "Deep Networks with Stochastic Depth",
    2016)."""
    if not rate:
        return
    from transformers.models.vjepa2.modeling_vjepa2 import VJEPA2DropPath

    layers = _layers(model)
    ends = _KINDS[model.config.model_type].ends
    for number, layer in enumerate(layers):
        share = rate * number / max(1, len(layers) - 1)
        for end in ends:
            layer.set_submodule(end, nn.Sequential(layer.get_submodule(end), VJEPA2DropPath(share)))


@contextmanager
def _one_line(where: str) -> Iterator[None]:
    """Report what is wrong with a user's model in a line; transformers raises all kinds."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{where}: {textwrap.shorten(str(error), 300)}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from printing progress bars and a report."""
    from transformers.utils import logging

    theirs: Any = logging
    verbosity = theirs.get_verbosity()
    bars = theirs.is_progress_bar_enabled()
    theirs.set_verbosity_error()
    theirs.disable_progress_bar()
    try:
        yield
    finally:
        theirs.set_verbosity(verbosity)
        if bars:
            theirs.enable_progress_bar()
