"""Position embeddings of PySlowFast's MViT for clips of any shape.

The model of a later PySlowFast release resizes its relative positions to the map of each layer. Its
absolute positions, and the numbers of patches that its forward expects, fit one shape of clips.
This module does not import PySlowFast. It recognises the model by the names of its class and
attributes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from multigrid.errors import MultigridError
from multigrid.positions.interpolate import Patches, place_positions

_ATTRIBUTES = ("patch_embed", "patch_stride", "patch_dims", "T", "H", "W")
"""Attributes of an MViT that the conversion uses."""


def convert_mvit(model: nn.Module) -> nn.Module:
    """Make each PySlowFast MViT in a model interpolate its positions to the shape of each clip.

    The model is changed in place. It may contain no MViT. An MViT for pictures, which has 2D
    patches, is left alone. Parameters and buffers stay the same objects with the same names. For
    clips of the baseline's shape, the outputs do not change.

    Returns:
        The same model.

    Raises:
        ValueError: An MViT lacks an attribute that the conversion uses.
    """
    for module in list[Any](model.modules()):
        if type(module).__name__ != "MViT":
            continue
        missing = [name for name in _ATTRIBUTES if not hasattr(module, name)]
        if missing:
            raise MultigridError(
                f"the MViT of this PySlowFast has no attribute {', '.join(missing)}, so it cannot "
                "be converted for clips of other shapes. Use the MViT of a PySlowFast since 2022, "
                "which supports MVIT.REL_POS_SPATIAL"
            )
        if _stem(module) is None:
            continue
        base = Patches(*module.patch_dims)
        module.__class__ = type("FollowingMViT", (_FollowingMViT, type(module)), {})
        module.base_patches = base
    return model


class _FollowingMViT(nn.Module):
    """Mixin of a converted MViT. It implements `FollowsGrid`.

    Attributes:
        base_patches: Number of patches of a baseline clip.
    """

    base_patches: Patches

    def patches(self: Any, frames: int, crop: int) -> Patches:
        """See `FollowsGrid`."""
        in_time, in_height, in_width = self.patch_stride
        if frames % in_time or crop % in_height or crop % in_width:
            raise MultigridError(
                f"clips of {frames} frames of {crop}² pixels cannot be divided into patches of "
                f"{in_time} frames of {in_height}×{in_width} pixels. Change DATA.NUM_FRAMES, "
                "DATA.TRAIN_CROP_SIZE or the factors of the cycles in MULTIGRID"
            )
        return Patches(frames // in_time, crop // in_height, crop // in_width)

    def set_coverage(self, coverage: Tensor | None) -> None:
        """Do nothing, because the clips of PySlowFast have no coverage."""

    def forward(self: Any, x: list[Tensor], *args: Any, **options: Any) -> Any:
        """Run the model on clips [(N, C, T, H, W)] of any shape."""
        stem = _stem(self)
        sizes: tuple[Any, ...] = (stem.padding, stem.kernel_size, stem.stride)
        axes = zip(x[0].shape[2:], *sizes, strict=True)
        patches = Patches(*((side + 2 * p - k) // s + 1 for side, p, k, s in axes))
        self.patch_dims = list(patches)
        self.T, self.H, self.W = patches
        with self._placed_tables(patches):
            return super().forward(x, *args, **options)

    @contextmanager
    def _placed_tables(self: Any, patches: Patches) -> Iterator[None]:
        """Replace the tables of absolute positions by interpolated tables for one forward.

        The tables are attributes of the model, which nn.Module keeps in `_parameters`.
        """
        base = self.base_patches
        tables = {
            "pos_embed": (base, patches),
            "pos_embed_spatial": (base._replace(time=1), patches._replace(time=1)),
            "pos_embed_temporal": (Patches(base.time, 1, 1), Patches(patches.time, 1, 1)),
        }
        kept = {name: table for name, table in self._parameters.items() if name in tables}
        try:
            for name, table in kept.items():
                self._parameters[name] = _placed(table, *tables[name])
            yield
        finally:
            self._parameters.update(kept)


def _stem(mvit: Any) -> Any:
    """Return the convolution that divides clips into patches. None if it is for pictures."""
    return next((m for m in mvit.patch_embed.modules() if isinstance(m, nn.Conv3d)), None)


def _placed(table: Tensor, base: Patches, patches: Patches) -> Tensor:
    """Interpolate a table (1, rows, C) of `base` patches. Rows of class tokens come first."""
    if patches == base:
        return table
    tokens = table.shape[1] - math.prod(base)
    placed = place_positions(table[0, tokens:], base, patches)
    return torch.cat((table[:, :tokens], placed[None]), dim=1)
