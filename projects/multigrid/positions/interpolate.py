"""Position embeddings that are interpolated to the shape of each clip.

A transformer has a table of position embeddings with one row for each of the T × H × W patches of a
baseline clip. A smaller clip shows the same part of the video in fewer patches, t × h × w. Each
patch therefore gets the embedding at its position in the baseline clip, interpolated linearly
between the rows of the table. The embeddings of class tokens do not change.

    patch index, baseline with 8 patches in time    0   1   2   3   4   5   6   7
    position of each patch with 4 in time             0.5     2.5     4.5     6.5

A smaller clip may also show less of the video than the baseline clip, because stride and short side
are drawn at random (paper §3.1). `coverage` is the fraction of the baseline clip that a clip shows.

For a model of your own, give one of its modules the two methods of `FollowsGrid`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from multigrid.errors import MultigridError
from multigrid.shapes import Shape

_FIXED = ("VideoMAEEmbeddings", "TimesformerEmbeddings", "VivitEmbeddings", "VJEPA2Embeddings")
"""Classes of transformers whose positions fit a single clip shape until they are converted."""


class Patches(NamedTuple):
    """Number of patches into which a clip is divided along time, height and width."""

    time: int
    height: int
    width: int


@runtime_checkable
class FollowsGrid(Protocol):
    """Interface of a module that interpolates position embeddings to the shape of each clip."""

    def patches(self, frames: int, crop: int) -> Patches:
        """Return the number of patches of a clip of `frames` frames of `crop` × `crop` pixels.

        Raises:
            ValueError: The clip cannot be divided into whole patches. The message says what to
                change.
        """

    def set_coverage(self, coverage: Tensor | None) -> None:
        """Set the coverage of the clips of the next training forward.

        In evaluation mode, the module ignores this value and uses a coverage of 1.

        Args:
            coverage: Tensor (N, 2) for N clips, as in `place_positions`. None means a coverage
                of 1.
        """


def place_positions(
    table: Tensor, base: Patches, patches: Patches, coverage: Tensor | None = None
) -> Tensor:
    """Interpolate a table of position embeddings to a different number of patches.

    Args:
        table: Position embeddings (T·H·W, C), ordered by time, height and width.
        base: Number of patches (T, H, W) of the table.
        patches: Number of patches (t, h, w) to interpolate to.
        coverage: Tensor (N, 2): the fraction of the baseline clip that each of N clips shows, in
            time and in space. A clip is always in the centre of the baseline clip. None means 1.

    Returns:
        Embeddings (t·h·w, C), or (N, t·h·w, C) if `coverage` is given. If there is nothing to
        interpolate, this is `table` itself.
    """
    if patches == base and coverage is None:
        return table
    weights = map(_weights, place_patches(base, patches, coverage, table.device), base)
    in_time, in_height, in_width = (each.to(table.dtype) for each in weights)
    rows = table.view(*base, -1)
    placed = torch.einsum("nat,nbh,ncw,thwd->nabcd", in_time, in_height, in_width, rows)
    placed = placed.flatten(1, 3)
    return placed if coverage is not None else placed[0]


def place_patches(
    base: Patches, patches: Patches, coverage: Tensor | None, device: torch.device
) -> list[Tensor]:
    """Compute the positions of patches in time, height and width, as baseline patch indices.

    Args:
        base: Number of patches of the baseline clip.
        patches: Number of patches of the smaller clip.
        coverage: As in `place_positions`.
        device: Device of the result.

    Returns:
        For each axis, fractional indices (N, patches) of the centres of the patches.
    """
    covered = torch.ones(1, 2, device=device) if coverage is None else coverage.to(device)
    in_time, in_space = covered[..., None].unbind(1)
    return list(map(_places, base, patches, (in_time, in_space, in_space)))


def _places(base: int, count: int, covered: Tensor) -> Tensor:
    """Return the positions (N, count) along an axis of which clips cover a fraction (N, 1)."""
    middles = (torch.arange(count, device=covered.device) + 0.5) / count - 0.5
    return base * (0.5 + covered * middles) - 0.5


def _weights(places: Tensor, base: int) -> Tensor:
    """Return linear interpolation weights (N, n, base) for fractional indices `places` (N, n)."""
    rows = torch.arange(base, device=places.device)
    return (1 - (places.clamp(0, base - 1)[..., None] - rows).abs()).clamp(min=0)


def check_patches(model: nn.Module, shapes: Iterable[Shape]) -> None:
    """Check that a model accepts clips of all shapes.

    Raises:
        ValueError: The model is a known transformer that was not converted by `convert_positions`,
            or it cannot divide clips of a shape into patches. The message says what to change.
    """
    shapes = list(shapes)
    kinds = {type(module).__name__ for module in model.modules()}
    if len({(shape.frames, shape.crop) for shape in shapes}) > 1 and not kinds.isdisjoint(_FIXED):
        raise MultigridError(
            "the model's position embeddings fit a single clip shape. Call "
            "multigrid.convert_positions(model) after building the model"
        )
    for module in _following(model):
        for shape in shapes:
            try:
                module.patches(shape.frames, shape.crop)
            except ValueError as error:
                raise MultigridError(
                    f"the model does not accept clips of shape {shape}: {error}"
                ) from None


def set_coverage(model: nn.Module, coverage: Tensor | None) -> None:
    """Call `set_coverage` of every module of a model that implements `FollowsGrid`.

    Args:
        model: The model to train.
        coverage: Coverage of the clips of the next forward, (N, 2) for N clips. None means 1.
    """
    for module in _following(model):
        module.set_coverage(coverage)


def _following(model: nn.Module) -> list[FollowsGrid]:
    # isinstance is slow for protocols (microseconds per module), so use the faster hasattr first.
    likely = (module for module in model.modules() if hasattr(type(module), "set_coverage"))
    return [module for module in likely if isinstance(module, FollowsGrid)]
