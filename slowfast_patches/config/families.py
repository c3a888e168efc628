"""Properties of the architectures of MODEL.ARCH, available as `recipe.model.family`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slowfast_patches.config.extensions import register

Build = Callable[[Any], Any]
"""Class or function that takes a `Recipe` and returns a `torch.nn.Module`."""


@dataclass(frozen=True)
class ModelFamily:
    """Properties of an architecture. models/build.py builds the models.

    Attributes:
        pathways: Number of input pathways: 1, or 2 for a slow and a fast pathway.
        is_transformer: Whether the model is from the package transformers. Such a model has no BN,
            adapts its position embeddings to the input shape, and supports SOLVER.LAYER_DECAY.
        without_effect: Maps each key that has no effect on the model to the reason.
        build: Class or function that `register_model` registered. None for a built-in model.
    """

    pathways: int = 1
    is_transformer: bool = False
    without_effect: Mapping[str, str] = field(default_factory=dict)
    build: Build | None = None

    @property
    def has_batchnorm(self) -> bool:
        return not self.is_transformer

    @property
    def is_resnet(self) -> bool:
        """Whether the model is a PySlowFast ResNet, configured by RESNET and NONLOCAL."""
        return not self.is_transformer and self.build is None


_NO_BN = "which has no BN"

FAMILIES: dict[str, ModelFamily] = {
    "slowfast": ModelFamily(pathways=2),
    "slowonly": ModelFamily(),
    "c2d": ModelFamily(),
    "c2d_nopool": ModelFamily(),
    "i3d": ModelFamily(),
    "i3d_nopool": ModelFamily(),
    "tsm": ModelFamily(),
    "hf": ModelFamily(
        is_transformer=True,
        without_effect={
            "BN.USE_PRECISE_STATS": _NO_BN,
            "BN.GROUP_SIZE": _NO_BN,
            "MULTIGRID.BN_BASE_SIZE": _NO_BN,
            "MODEL.CHANNELS_LAST": "which computes on tokens instead of feature maps",
            "MODEL.DROPOUT_RATE": "whose dropout rates are in HF.CONFIG, e.g. hidden_dropout_prob",
        },
    ),
}
"""Properties of each architecture by its name in MODEL.ARCH."""


def register_model(name: str, family: ModelFamily | None = None) -> Callable[[Build], Build]:
    """Return a decorator that registers a model under a name for MODEL.ARCH.

    The decorated class or function takes a `Recipe` and returns a `torch.nn.Module`. The module
    takes a list of pathways (N, C, T, H, W) and returns logits (N, classes). In evaluation, the
    activation of MODEL.HEAD_ACT converts the logits to scores.

    Args:
        name: Name of the model in MODEL.ARCH.
        family: Properties of the model. By default, the model has one pathway.

    Raises:
        ValueError: The name is taken or invalid. Or `family` does not have 1 or 2 pathways, or sets
            `is_transformer` or `build`.
    """
    family = family or ModelFamily()
    if family.pathways not in (1, 2) or family.is_transformer or family.build is not None:
        raise ValueError(
            f"the model {name!r} cannot have the properties {family}. Register a ModelFamily with "
            "1 or 2 pathways, and do not set is_transformer or build."
        )

    def decorate(build: Build) -> Build:
        register(FAMILIES, "model", name, dataclasses.replace(family, build=build))
        return build

    return decorate
