"""Conversion of models of the package transformers to clips of any shape."""

from __future__ import annotations

import importlib.metadata
from typing import Any

from torch import nn

from multigrid.errors import MultigridError


def convert_positions(model: nn.Module) -> nn.Module:
    """Make a `transformers` model interpolate its position embeddings to the shape of each clip.

    Call this once after building a VideoMAE, TimeSformer, ViViT or V-JEPA 2 model. The model is
    changed in place. Parameters and buffers keep their names, so state dicts do not change. For
    clips of the baseline's shape, the outputs do not change.

    Returns:
        The same model.

    Raises:
        ImportError: The package transformers is older than version 5.18.
        ValueError: The model is of another type or for pre-training, or its patches are not square.
    """
    check_transformers()
    from multigrid.positions.models import FOLLOWING, follow_grid

    modules = list[Any](model.modules())
    if not any(isinstance(module, tuple(FOLLOWING)) for module in modules):
        raise MultigridError(
            f"convert_positions does not support {type(model).__name__}, only VideoMAE, "
            "TimeSformer, ViViT and V-JEPA 2. Implement multigrid.FollowsGrid in a module of the "
            "model. If the model accepts all clip shapes without conversion, do not call "
            "convert_positions"
        )
    for module in modules:
        if type(module) in FOLLOWING:
            follow_grid(module, model)
    return model


def check_transformers() -> None:
    """Raise ImportError if the package transformers is older than version 5.18.

    Versions 5.0 to 5.17 load the weights q_bias and v_bias of VideoMAE as zeros.
    """
    version = importlib.metadata.version("transformers")
    if tuple(map(int, version.split(".")[:2])) < (5, 18):
        raise ImportError(
            f"transformers {version} is too old, because it loads some weights of VideoMAE as "
            "zeros. Run pip install --upgrade 'transformers>=5.18'"
        )
