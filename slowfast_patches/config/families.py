"""Properties of the networks of MODEL.ARCH, available as `recipe.model.family`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ModelFamily:
    """Properties of a kind of network. models/build.py builds it.

    Attributes:
        pathways: Number of pathways; 2 for a slow and a fast one.
        is_transformer: Whether it is a model of the package transformers. Such a model has no BN,
            has position embeddings that follow the grid, and supports SOLVER.LAYER_DECAY.
        without_effect: Keys that have no effect, each with the reason.
    """

    pathways: int = 1
    is_transformer: bool = False
    without_effect: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_batchnorm(self) -> bool:
        return not self.is_transformer


_NO_BN = "which has no BN"

FAMILIES: Mapping[str, ModelFamily] = {
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
