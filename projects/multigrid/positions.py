"""Position embeddings that are interpolated to the shape of each clip.

A transformer has a table of position embeddings with one row for each of the T × H × W patches of a
baseline clip. A smaller clip shows the same part of the video in fewer patches, t × h × w. Each
patch therefore gets the embedding at its position in the baseline clip, interpolated linearly
between the rows of the table. The embeddings of class tokens do not change.

    patch index, baseline with 8 patches in time    0   1   2   3   4   5   6   7
    position of each patch with 4 in time             0.5     2.5     4.5     6.5

A smaller clip may also show less of the video than the baseline clip, because stride and short side
are drawn at random (paper §3.1). `coverage` is the fraction of the baseline clip that a clip shows.

`convert_positions` converts models of `transformers`. For any other model, give one of its modules
the two methods of `FollowsGrid`.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from multigrid.contract import check_transformers
from multigrid.shapes import Shape

__all__ = [
    "FollowsGrid",
    "Patches",
    "check_patches",
    "convert_positions",
    "place_positions",
    "set_coverage",
]


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
    in_time, in_height, in_width = (
        _weights(places, n).to(table.dtype)
        for places, n in zip(_places(base, patches, coverage, table.device), base, strict=True)
    )
    rows = table.view(*base, -1)
    placed = torch.einsum("nat,nbh,ncw,thwd->nabcd", in_time, in_height, in_width, rows)
    placed = placed.flatten(1, 3)
    return placed if coverage is not None else placed[0]


def _places(
    base: Patches, patches: Patches, coverage: Tensor | None, device: torch.device
) -> list[Tensor]:
    """Return `place_patches` for time, height and width. A coverage of None means 1."""
    covered = torch.ones(1, 2, device=device) if coverage is None else coverage.to(device)
    axes = zip(base, patches, (0, 1, 1), strict=True)
    return [place_patches(n, many, covered[:, axis]) for n, many, axis in axes]


def place_patches(base: int, patches: int, coverage: Tensor) -> Tensor:
    """Compute the positions of patches along one axis, as indices of the baseline's patches.

    Args:
        base: Number of patches of the baseline clip along the axis.
        patches: Number of patches of the smaller clip along the axis.
        coverage: Tensor (N,): the fraction of the axis that each of N clips shows.

    Returns:
        Fractional indices (N, patches) of the centres of the patches.
    """
    middles = (torch.arange(patches, device=coverage.device) + 0.5) / patches - 0.5
    return base * (0.5 + coverage[:, None] * middles) - 0.5


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
    if len({(shape.frames, shape.crop) for shape in shapes}) > 1 and not kinds.isdisjoint(
        _FOLLOWERS
    ):
        raise ValueError(
            "the model's position embeddings fit a single clip shape. Call "
            "multigrid.convert_positions(model) after building the model"
        )
    for module in _following(model):
        for shape in shapes:
            try:
                module.patches(shape.frames, shape.crop)
            except ValueError as error:
                raise ValueError(
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


def convert_positions(model: nn.Module) -> nn.Module:
    """Make a `transformers` model interpolate its position embeddings to the shape of each clip.

    Call this once after building a VideoMAE, TimeSformer, ViViT or V-JEPA 2 model. The model is
    changed in place. Parameters and buffers keep their names, so state dicts do not change. For
    clips of the baseline's shape, the outputs do not change.

    Returns:
        The same model.

    Raises:
        ImportError: The package transformers is older than version 5.18.
        ValueError: The model is of another type or for pre-training, or its frames or patches are
            not square.
    """
    converted = any(isinstance(module, _Follower) for module in model.modules())
    for module in list[Any](model.modules()):
        if (follower := _FOLLOWERS.get(type(module).__name__)) is not None:
            if type(module).__module__.startswith("transformers."):
                check_transformers()
            module.__class__ = _following_class(follower, type(module))
            module.start(model)
            converted = True
    if not converted:
        raise ValueError(
            f"convert_positions does not support {type(model).__name__}, only VideoMAE, "
            "TimeSformer, ViViT and V-JEPA 2. Implement multigrid.FollowsGrid in a module of the "
            "model. If the model accepts all clip shapes without conversion, do not call "
            "convert_positions"
        )
    return model


def _following_class(follower: Any, kind: Any) -> Any:
    return type(f"Following{kind.__name__}", (follower, kind), {})


def _new_instance(follower: Any, kind: Any) -> Any:
    made = _following_class(follower, kind)
    return made.__new__(made)


class _Converted:
    """Mixin that makes instances picklable although their class is created at run time."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _new_instance, type(self).__bases__, self.__dict__


class _Follower(_Converted):
    """Base class of the converted embedding modules.

    Attributes:
        base: Number of patches of a baseline clip.
        size: Size (frames, pixels) of a patch.
    """

    base: Patches
    size: tuple[int, int]
    _coverage: Tensor | None

    # Get the number of clips from `.shape[0]`, because torch.export turns `len` into a constant.

    def _start(
        self, frames: int, sides: tuple[int, int], size: tuple[int, int, int], model: nn.Module
    ) -> None:
        """Set `base` and `size`.

        Args:
            frames: Number of frames of a baseline clip.
            sides: (height, width) of a baseline clip.
            size: (frames, height, width) of a patch.
            model: The model that contains this module.

        Raises:
            ValueError: The clips or patches are not square, or the model is for pre-training.
        """
        height, width = sides
        in_time, *in_space = size
        if height != width or in_space[0] != in_space[1]:
            raise ValueError(
                f"the model has frames of {sides} pixels and patches of {size}, but both must be "
                "square"
            )
        if hasattr(model, "decoder"):
            raise ValueError(
                f"{type(model).__name__} is for pre-training: convert_positions does not support "
                "the positions of the decoder. Convert a model without the decoder"
            )
        self.size = (in_time, in_space[0])
        self._coverage = None
        self.base = self.patches(frames, height)

    def patches(self, frames: int, crop: int) -> Patches:
        """See `FollowsGrid`."""
        in_time, in_space = self.size
        if frames % in_time:
            raise ValueError(
                f"the number of frames must be a multiple of {in_time}, the frames of a patch, but "
                f"is {frames}. Change the baseline's frames (DATA.NUM_FRAMES) or the long-cycle "
                "factors"
            )
        if crop % in_space:
            raise ValueError(
                f"the crop must be a multiple of {in_space}, the pixels of a patch, but is {crop}. "
                "If this is the baseline's crop, change DATA.TRAIN_CROP_SIZE. If it is a smaller "
                f"crop, use make_schedule(..., size_divisor={in_space}) or MULTIGRID.SIZE_DIVISOR "
                f"{in_space}"
            )
        return Patches(frames // in_time, crop // in_space, crop // in_space)

    def set_coverage(self, coverage: Tensor | None) -> None:
        """See `FollowsGrid`."""
        self._coverage = coverage

    @property
    def coverage(self: Any) -> Tensor | None:
        """Coverage set for the current clips. None, which means 1, in evaluation mode."""
        return self._coverage if self.training else None

    def _coverage_of(self, clips: int) -> Tensor | None:
        coverage = self.coverage
        if coverage is not None and len(coverage) not in (1, clips):
            raise ValueError(
                f"the batch has {clips} clips, but coverage was set for {len(coverage)}. Call "
                "multigrid.set_coverage for each micro-batch, before the forward"
            )
        return coverage

    def _positions(self: Any, table: Tensor, patches: Patches, clips: int) -> Tensor:
        return place_positions(table, self.base, patches, self._coverage_of(clips))


class _VideoMAE(_Follower):
    def start(self: Any, model: nn.Module) -> None:
        cut = self.patch_embeddings
        config = self.config
        size = (cut.tubelet_size, *cut.patch_size)
        self._start(config.num_frames, cut.image_size, size, model)

    def forward(self: Any, pixel_values: Tensor, bool_masked_pos: Tensor | None = None) -> Tensor:
        """Embed clips (N, T, 3, H, W) as tokens (N, patches, C)."""
        embeddings, patches = _embed_patches(self.patch_embeddings.projection, pixel_values)
        # `model.to` does not move the table, because transformers does not register it as a buffer.
        self.position_embeddings = self.position_embeddings.to(embeddings.device)
        table = self.position_embeddings[0].to(embeddings)
        embeddings += self._positions(table, patches, embeddings.shape[0])
        if bool_masked_pos is None:
            return embeddings
        visible = embeddings[~bool_masked_pos]
        return visible.reshape(embeddings.shape[0], -1, embeddings.shape[-1])


class _ViViT(_Follower):
    def start(self: Any, model: nn.Module) -> None:
        tubelet = self.patch_embeddings.projection.kernel_size
        height, width = self.image_size
        in_plane = (height // tubelet[1]) * (width // tubelet[2])
        frames = self.patch_embeddings.num_patches // in_plane * tubelet[0]
        self._start(frames, (height, width), tubelet, model)

    def forward(self: Any, pixel_values: Tensor, interpolate_pos_encoding: bool = False) -> Tensor:
        """Embed clips (N, T, 3, H, W) as tokens (N, 1 + patches, C).

        `interpolate_pos_encoding` is ignored, because positions are always interpolated.
        """
        embeddings, patches = _embed_patches(self.patch_embeddings.projection, pixel_values)
        own = self.position_embeddings[:, :1]
        table = self.position_embeddings[0, 1:]
        embeddings = embeddings + self._positions(table, patches, embeddings.shape[0])
        first = (self.cls_token + own).expand(embeddings.shape[0], -1, -1)
        output: Tensor = self.dropout(torch.cat((first, embeddings), dim=1))
        return output


class _TimeSformer(_Follower):
    """Embeddings of TimeSformer, with one position table for time and one for space."""

    def start(self: Any, model: nn.Module) -> None:
        if self.attention_type == "space_only":
            raise ValueError(
                "a TimeSformer with attention_type 'space_only' cannot be converted, because it "
                "has no position embeddings for time. Use another attention_type"
            )
        cut = self.patch_embeddings
        frames = self.time_embeddings.shape[1]
        self._start(frames, cut.image_size, (1, *cut.patch_size), model)
        # The layers read frames and crop from `config`. Let `forward` update them per mini-batch.
        self.now = SimpleNamespace(image_size=cut.image_size[0], patch_size=cut.patch_size[0])
        self.now.num_frames = frames
        for layer in model.modules():
            if type(layer).__name__ == "TimesformerLayer":
                layer.config = self.now

    def forward(self: Any, pixel_values: Tensor) -> Tensor:
        """Embed clips (N, T, 3, H, W) as tokens (N, 1 + patches, C).

        The tokens are ordered by position in the frame first, then by frame.
        """
        clips, frames = pixel_values.shape[:2]
        self.now.num_frames = frames
        self.now.image_size = pixel_values.shape[-1]
        embeddings = self.patch_embeddings.projection(pixel_values.flatten(0, 1))
        in_plane = Patches(1, *embeddings.shape[2:])
        embeddings = embeddings.flatten(2).mT.unflatten(0, (clips, frames))  # (N, T, places, C)
        coverage = self._coverage_of(clips)
        table = self.position_embeddings[0, 1:]
        places = place_positions(table, self.base._replace(time=1), in_plane, coverage)
        in_time = (Patches(self.base.time, 1, 1), Patches(frames, 1, 1))
        times = place_positions(self.time_embeddings[0], *in_time, coverage)
        embeddings = embeddings + places.view(-1, 1, *places.shape[-2:])
        first = self.cls_token + self.position_embeddings[:, :1]
        first = self.pos_drop(first.expand(clips, -1, -1))
        embeddings = self.pos_drop(embeddings) + times.view(-1, frames, 1, times.shape[-1])
        embeddings = self.time_drop(embeddings)
        return torch.cat((first, embeddings.transpose(1, 2).flatten(1, 2)), dim=1)


class _VJEPA2(_Follower):
    """Embeddings of V-JEPA 2, which applies rotary position embeddings in every attention layer."""

    def start(self: Any, model: nn.Module) -> None:
        config = self.config
        size = (config.tubelet_size, config.patch_size, config.patch_size)
        self._start(config.frames_per_clip, (config.crop_size,) * 2, size, model)
        self.now = SimpleNamespace(patches=self.base, coverage=None, base=self.base)
        for layer in model.modules():
            if type(layer).__name__ == "VJEPA2RopeAttention":
                layer.__class__ = _following_class(_VJEPA2Rope, type(layer))
                layer.now = self.now

    def forward(self: Any, pixel_values_videos: Tensor) -> Tensor:
        """Embed clips (N, T, 3, H, W) as tokens (N, patches, C)."""
        frames = pixel_values_videos.shape[1]
        crop = pixel_values_videos.shape[-1]
        self.now.patches = self.patches(max(frames, self.size[0]), crop)
        self.now.coverage = self._coverage_of(pixel_values_videos.shape[0])
        output: Tensor = super().forward(pixel_values_videos)  # type: ignore[misc]
        return output


class _VJEPA2Rope(_Converted):
    def get_position_ids(self: Any, x: Tensor, masks: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return token positions in time, height and width, as indices of the baseline's patches.

        The indices are fractional for clips of other shapes.
        """
        if masks is not None:  # Masks are only used in pre-training.
            kept: tuple[Tensor, ...] = super().get_position_ids(x, masks)  # type: ignore[misc]
            return kept
        t, h, w = _places(self.now.base, self.now.patches, self.now.coverage, x.device)
        axes = (t[:, :, None, None], h[:, None, :, None], w[:, None, None])
        grid = torch.broadcast_tensors(*axes)  # type: ignore[no-untyped-call]
        return tuple(axis.flatten(1)[:, None].to(x.dtype) for axis in grid)


def _embed_patches(projection: nn.Module, pixel_values: Tensor) -> tuple[Tensor, Patches]:
    """Embed the patches of clips (N, T, 3, H, W).

    Returns:
        Embeddings (N, t·h·w, C), and the number of patches (t, h, w).
    """
    cut = projection(pixel_values.transpose(1, 2))
    return cut.flatten(2).mT, Patches(*cut.shape[2:])


_FOLLOWERS: dict[str, type[_Follower]] = {
    "VideoMAEEmbeddings": _VideoMAE,
    "TimesformerEmbeddings": _TimeSformer,
    "VivitEmbeddings": _ViViT,
    "VJEPA2Embeddings": _VJEPA2,
}
