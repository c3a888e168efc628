"""Video transformers from the package transformers, adapted to train at every shape."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from multigrid import FollowsGrid, convert_positions
from multigrid.positions import check_transformers
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.extras.transformers.keys import HfKeys
from slowfast_patches.extras.transformers.pretrained import (
    MODEL_TYPES,
    configuration,
    load_folder,
)
from slowfast_patches.utils.errors import UserError, mistake_in


def build_transformer(recipe: Recipe) -> nn.Module:
    """Build the model of HF.MODEL on the default device.

    If HF.MODEL is a model type, the model is initialised randomly for the number of frames and the
    crop size of the recipe. If HF.MODEL is a folder or a name on the Hugging Face Hub, the model
    has the input size of the stored configuration and starts from the stored weights. A head that
    is missing or has another shape is initialised randomly. Position embeddings are interpolated to
    the shape of the clips (`multigrid.convert_positions`).

    The input of the model is a list of one pathway (N, 3, T, H, W), and the output is logits
    (N, classes). Hooks convert input and output, so the parameters keep their names.

    Raises:
        ValueError: The package transformers is missing or too old, or the model does not exist.
            Or the configuration or the weights do not match the recipe.
    """
    try:
        from transformers import AutoModelForVideoClassification as Auto

        check_transformers()
    except ImportError as error:
        raise UserError(
            f"MODEL.ARCH hf needs the package transformers ({error}). Run "
            "pip install 'transformers>=5.18,<6' 'accelerate<2'"
        ) from None
    config, folder = configuration(recipe)
    if folder and torch.get_default_device().type != "meta":
        model = load_folder(folder, config, recipe.data)
    else:
        with mistake_in(f"HF.CONFIG {dict(HfKeys.of(recipe).config)}", Exception):
            model = Auto.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    if config.model_type == "vjepa2":
        model.base_model.predictor = nn.Identity()
    convert_positions(model)
    _add_drop_path(model, HfKeys.of(recipe).drop_path)
    model.register_forward_pre_hook(_take_pathways)
    model.register_forward_hook(_take_logits)
    built: nn.Module = model
    return built


def _take_pathways(model: nn.Module, inputs: tuple[list[Tensor]]) -> tuple[Tensor]:
    """Convert a list of one pathway (N, 3, T, H, W) to pixel values (N, T, 3, H, W)."""
    ((pathway,),) = inputs
    return (pathway.transpose(1, 2),)


def _take_logits(model: nn.Module, inputs: object, output: Any) -> Tensor:
    logits: Tensor = output.logits
    return logits


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
    path = MODEL_TYPES[model.config.model_type].layers
    return list(model.base_model.get_submodule(path))


def input_size(model: Any) -> tuple[int, int]:
    """Return the (frames, crop size) for which a model was configured."""
    names = MODEL_TYPES[model.config.model_type]
    return getattr(model.config, names.frames), getattr(model.config, names.crop)


def _add_drop_path(model: Any, rate: float) -> None:
    """Add drop path to a model: clips skip residual branches at random in training.

    The probability rises linearly from 0 in the first layer to `rate` in the last layer (Huang et
    al., "Deep Networks with Stochastic Depth", 2016).
    """
    if not rate:
        return
    from transformers.models.vjepa2.modeling_vjepa2 import VJEPA2DropPath

    layers = _layers(model)
    ends = MODEL_TYPES[model.config.model_type].branch_ends
    for number, layer in enumerate(layers):
        share = rate * number / max(1, len(layers) - 1)
        for end in ends:
            layer.set_submodule(end, nn.Sequential(layer.get_submodule(end), VJEPA2DropPath(share)))
