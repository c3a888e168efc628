"""Functions that build models which can be trained at every shape of a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from multigrid import convert_batchnorm
from multigrid.compiled import check_cuda_graphs
from slowfast_patches import patching
from slowfast_patches.config.recipe import Recipe, pyslowfast_config
from slowfast_patches.models.layers.conv_and_pool import (
    MeanOverFrames,
    TrainingGlobalPool3d,
    convert_convolutions,
    convert_pools,
)
from slowfast_patches.models.layers.dropout import ClipDropout
from slowfast_patches.registry import ModelSpec, register_model
from slowfast_patches.utils.errors import UserError

__all__ = ["build_model", "build_on_meta"]


def build_model(recipe: Recipe, *, grouped_bn: bool = False) -> nn.Module:
    """Build the model of a recipe on the default device.

    Parameters keep their usual names: those of PySlowFast in a PySlowFast model, and those of the
    class in another registered model.

    Args:
        recipe: The recipe.
        grouped_bn: Replace each BN layer by a layer that normalises over a fixed number of clips.

    Returns:
        The model, in the memory format that MODEL.CHANNELS_LAST selects.
    """
    spec = recipe.model.spec
    assert spec.build is not None
    model: nn.Module = spec.build(recipe)
    if not isinstance(model, nn.Module):
        raise UserError(
            f"the builder of MODEL.ARCH {recipe.model.arch} must return a torch.nn.Module, not a "
            f"{type(model).__name__}"
        )
    check_cuda_graphs(model)
    if not spec.is_resnet:
        # In evaluation, the model returns scores.
        # With `mask_seed`, a resumed run draws the same numbers, as `seed_dropout` seeds torch.
        model.mask_seed = recipe.rng_seed  # type: ignore[assignment]
        model.register_forward_hook(partial(_return_scores, act=recipe.model.head_act))
    if not spec.has_batchnorm:
        return model
    model = convert_convolutions(convert_pools(model))
    if recipe.model.channels_last:
        model.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
    return convert_batchnorm(model) if grouped_bn else model


def _return_scores(model: nn.Module, inputs: object, logits: Tensor, act: str) -> Tensor:
    """Return logits (N, classes) in training, or scores in evaluation."""
    if model.training:
        return logits
    return logits.sigmoid() if act == "sigmoid" else logits.softmax(dim=1)


def build_resnet(recipe: Recipe) -> nn.Module:
    """Build a PySlowFast model whose head accepts clips of every shape."""
    patching.apply()
    from slowfast.models.model_builder import _MODEL_TYPES

    # PySlowFast can build c2d_nopool and i3d_nopool, but does not list them.
    kind = _MODEL_TYPES[recipe.model.arch.removesuffix("_nopool")]
    model: nn.Module = kind(pyslowfast_config(recipe))
    head: Any = model.head
    for name, pool in list(head.named_children()):
        if name.endswith("_avgpool"):
            setattr(head, name, TrainingGlobalPool3d(pool.kernel_size, stride=pool.stride))
        elif name.endswith("_tpool"):
            setattr(head, name, MeanOverFrames())
    if recipe.model.dropout_rate > 0:
        features = head.projection.in_features
        head.dropout = ClipDropout(recipe.model.dropout_rate, recipe.rng_seed, features)
    if recipe.model.head_act == "sigmoid":
        head.act = _EvaluationSigmoid()
    return model


def weight_files(recipe: Recipe) -> Sequence[Path] | None:
    """Return the files of initial weights that the model's own keys name.

    The sequence is empty if the weights are not files of this machine. The result is None if the
    initial weights are random.
    """
    named = recipe.model.spec.weight_files
    return None if named is None else named(recipe)


def build_on_meta(recipe: Recipe) -> nn.Module:
    """Build a model on the meta device, without weights, to check shapes and count FLOPs."""
    with _SkipRandomInit(), torch.device("meta"):
        return build_model(recipe)


class _EvaluationSigmoid(nn.Sigmoid):
    """Sigmoid in evaluation, and identity in training, because the loss expects logits.

    One of the heads of PySlowFast applies the activation in training as well.
    """

    def forward(self, input: Tensor) -> Tensor:
        return input if self.training else super().forward(input)


class _SkipRandomInit(TorchFunctionMode):
    """Mode in which `Tensor.normal_` and `Tensor.uniform_` do nothing.

    On meta tensors, these functions import torch's compiler, which takes seconds.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (torch.Tensor.normal_, torch.Tensor.uniform_):
            return args[0]
        return func(*args, **(kwargs or {}))


register_model("slowfast", ModelSpec(pathways=2, is_resnet=True, is_cast=True))(build_resnet)
for name in ("slowonly", "c2d", "c2d_nopool", "i3d", "i3d_nopool"):
    register_model(name, ModelSpec(is_resnet=True, is_cast=True))(build_resnet)
