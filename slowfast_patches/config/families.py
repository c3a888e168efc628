"""What the networks of MODEL.ARCH take and have; all other code asks `recipe.model.family`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["FAMILIES", "ModelFamily"]


@dataclass(frozen=True)
class ModelFamily:
    """A kind of network; how one is built is in models/build.py.

    pathways: 2 for a slow and a fast one.
    least_frames: frames that a clip needs at least, to be pooled or shifted along time.
    is_transformer: of the package transformers, not of the host's stages and blocks: it has no BN,
        positions that follow the grid, and a rate for each layer (SOLVER.LAYER_DECAY).
    without_effect: keys that it does not read, and why.
    """

    pathways: int = 1
    least_frames: int = 1
    is_transformer: bool = False
    without_effect: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_batchnorm(self) -> bool:
        return not self.is_transformer


_NO_BN = "which has no BN"

FAMILIES: Mapping[str, ModelFamily] = {
    "slowfast": ModelFamily(pathways=2),
    "slowonly": ModelFamily(),
    "c2d": ModelFamily(least_frames=2),
    "c2d_nopool": ModelFamily(),
    "i3d": ModelFamily(least_frames=2),
    "i3d_nopool": ModelFamily(),
    "tsm": ModelFamily(least_frames=2),
    "hf": ModelFamily(
        is_transformer=True,
        without_effect={
            "BN.USE_PRECISE_STATS": _NO_BN,
            "BN.GROUP_SIZE": _NO_BN,
            "MULTIGRID.BN_BASE_SIZE": _NO_BN,
            "MODEL.CHANNELS_LAST": "which computes on tokens",
            "MODEL.DROPOUT_RATE": "whose dropouts are HF.CONFIG's (as hidden_dropout_prob)",
        },
    ),
}
"""By MODEL.ARCH."""
