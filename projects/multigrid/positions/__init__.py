"""Position embeddings that are interpolated to the shape of each clip."""

from multigrid.positions.convert import check_transformers, convert_positions
from multigrid.positions.interpolate import (
    FollowsGrid,
    Patches,
    check_patches,
    place_positions,
    set_coverage,
)
from multigrid.positions.mvit import convert_mvit

__all__ = [
    "FollowsGrid",
    "Patches",
    "check_patches",
    "check_transformers",
    "convert_mvit",
    "convert_positions",
    "place_positions",
    "set_coverage",
]
