"""Properties of the networks of MODEL.ARCH, available as `recipe.model.family`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slowfast_patches.config.extensions import register

Build = Callable[[Any], Any]
"""Class or function that builds a `torch.nn.Module` from a `Recipe`."""


@dataclass(frozen=True)
class ModelFamily:
    """Properties of a kind of network. models/build.py builds it.

    Attributes:
        pathways: Number of pathways; 2 for a slow and a fast one.
        is_transformer: Whether it is a model of the package transformers. Such a model has no BN,
            has position embeddings that follow the grid, and supports SOLVER.LAYER_DECAY.
        without_effect: Keys that have no effect, each with the reason.
        build: What `register_model` registered. None for a model of this package.
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
        """Whether it is a ResNet of PySlowFast, described by RESNET and NONLOCAL."""
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
"""Families by MODEL.ARCH."""


def register_model(name: str, family: ModelFamily | None = None) -> Callable[[Build], Build]:
    """Return a decorator that registers a model under a name for MODEL.ARCH.

    The decorated class or function takes a `Recipe` and builds a `torch.nn.Module`. That takes a
    list of pathways (N, C, T, H, W) and returns logits (N, classes). The trainer turns the logits
    into scores in evaluation.

    Args:
        name: Name in a recipe.
        family: Properties of the model. By default it has one pathway.

    Raises:
        ValueError: The name is taken or invalid, or the family does not describe such a model.
    """
    family = family or ModelFamily()
    if family.pathways not in (1, 2) or family.is_transformer or family.build is not None:
        raise ValueError(
            f"the model {name!r} cannot have {family}. Register a ModelFamily with 1 or 2 pathways "
            "and neither is_transformer nor build."
        )

    def decorate(build: Build) -> Build:
        register(FAMILIES, "model", name, dataclasses.replace(family, build=build))
        return build

    return decorate
