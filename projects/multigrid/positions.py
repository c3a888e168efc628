"""Position embeddings that follow the grid of a clip.

A transformer's position table has a row for each patch of the baseline's clip. The t × h × w
patches of a coarser grid cover the same clip as the baseline's T × H × W. Each patch takes the
embedding at its position in the clip, by linear interpolation between rows. Class tokens keep their
own embedding.

    baseline, 8 patches in time    0   1   2   3   4   5   6   7
    coarse, 4 patches                0.5     2.5     4.5     6.5       not 0, 1, 2, 3

A coarse clip may cover less than the baseline's, because its stride and its short side are drawn at
random (paper §3.1). `coverage` is the share that each clip covers.

`convert_positions` does this for models of `transformers`. Another model takes part if one of its
modules has the two methods of `FollowsGrid`.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

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
    """Numbers of patches of a clip in time, height and width."""

    time: int
    height: int
    width: int


@runtime_checkable
class FollowsGrid(Protocol):
    """Protocol of a module whose position embeddings follow the grid of a clip."""

    def patches(self, frames: int, crop: int) -> Patches:
        """Return the patches of a clip of `frames` frames of `crop` × `crop` pixels.

        Raises:
            ValueError: such a clip cannot be divided into patches. The message says what to change.
        """

    def set_coverage(self, coverage: Tensor | None) -> None:
        """Set the coverage of the next training clips.

        In evaluation, coverage is always 1.

        Args:
            coverage: (N, 2) for N clips, as in `place_positions`, or None for 1.
        """


def place_positions(
    table: Tensor, base: Patches, patches: Patches, coverage: Tensor | None = None
) -> Tensor:
    """Interpolate a table of position embeddings at the patches of another grid.

    Args:
        table: (T·H·W, C), in the order of time, height, width.
        base: the T, H, W of the table.
        patches: the t, h, w of the other grid.
        coverage: (N, 2), the share that each of N clips covers of the baseline's clip, in time and
            in space. Both clips have the same centre. None means 1.

    Returns:
        The embeddings, (t·h·w, C), or (N, t·h·w, C) with coverage. Without coverage, on the table's
        own grid, it is `table` itself.
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
    """Call `place_patches` for time, height and width; coverage of None is 1."""
    covered = torch.ones(1, 2, device=device) if coverage is None else coverage.to(device)
    axes = zip(base, patches, (0, 1, 1), strict=True)
    return [place_patches(n, many, covered[:, axis]) for n, many, axis in axes]


def place_patches(base: int, patches: int, coverage: Tensor) -> Tensor:
    """Compute the positions of patches along one axis, in units of the baseline's patches.

    Args:
        base: the number of the baseline's patches along the axis.
        patches: the number of patches of the other grid.
        coverage: (N,), the share of the axis that each of N clips covers.

    Returns:
        The positions of the patches' centres, (N, patches).
    """
    middles = (torch.arange(patches, device=coverage.device) + 0.5) / patches - 0.5
    return base * (0.5 + coverage[:, None] * middles) - 0.5


def _weights(places: Tensor, base: int) -> Tensor:
    """Return the weights, (N, n, base), of linear interpolation at `places` (N, n)."""
    rows = torch.arange(base, device=places.device)
    return (1 - (places.clamp(0, base - 1)[..., None] - rows).abs()).clamp(min=0)


def check_patches(model: nn.Module, shapes: Iterable[Shape]) -> None:
    """Check that a model can divide clips of all shapes into patches.

    Raises:
        ValueError: a module that follows the grid cannot; the message names the shape and what to
            change. Or the model has not been converted by `convert_positions`.
    """
    shapes = list(shapes)
    kinds = {type(module).__name__ for module in model.modules()}
    if len({(shape.frames, shape.crop) for shape in shapes}) > 1 and not kinds.isdisjoint(
        _FOLLOWERS
    ):
        raise ValueError(
            "the model's position embeddings are for one grid only: call "
            "multigrid.convert_positions(model) after building it"
        )
    for module in _following(model):
        for shape in shapes:
            try:
                module.patches(shape.frames, shape.crop)
            except ValueError as error:
                raise ValueError(f"the model cannot take clips of shape {shape}: {error}") from None


def set_coverage(model: nn.Module, coverage: Tensor | None) -> None:
    """Set the coverage of the next training clips in every module that follows the grid."""
    for module in _following(model):
        module.set_coverage(coverage)


def _following(model: nn.Module) -> list[FollowsGrid]:
    # isinstance with a protocol takes microseconds per module, so filter by a cheap test first.
    likely = (module for module in model.modules() if hasattr(type(module), "set_coverage"))
    return [module for module in likely if isinstance(module, FollowsGrid)]


def convert_positions(model: nn.Module) -> nn.Module:
    """Make the position embeddings of a `transformers` model follow the grid.

    Call this once, after building a VideoMAE, TimeSformer, ViViT or V-JEPA 2. Parameters and
    buffers stay the same objects under the same names. At the baseline's shape the outputs do not
    change.

    Returns:
        The model itself.

    Raises:
        ValueError: the model is none of these, is for pre-training, or its frames or patches are
            not square.
    """
    converted = any(isinstance(module, _Follower) for module in model.modules())
    for module in list[Any](model.modules()):
        if (follower := _FOLLOWERS.get(type(module).__name__)) is not None:
            module.__class__ = _following_class(follower, type(module))
            module.start(model)
            converted = True
    if not converted:
        raise ValueError(
            f"{type(model).__name__} has no known position embeddings. Those of VideoMAE, "
            "TimeSformer, ViViT and V-JEPA 2 are known. Give a module of another model the two "
            "methods of multigrid.FollowsGrid, or leave out convert_positions if its positions "
            "follow the grid without it"
        )
    return model


def _following_class(follower: Any, kind: Any) -> Any:
    return type(f"Following{kind.__name__}", (follower, kind), {})


def _new_instance(follower: Any, kind: Any) -> Any:
    made = _following_class(follower, kind)
    return made.__new__(made)


class _Converted:
    """Mixin of classes that are created at run time, which makes their instances picklable."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _new_instance, type(self).__bases__, self.__dict__


class _Follower(_Converted):
    """Base of the converted embedding modules.

    `base` is the baseline's numbers of patches. `size` is the size of a patch in frames and pixels.
    """

    base: Patches
    size: tuple[int, int]
    _coverage: Tensor | None

    # Use `.shape[0]` for the number of clips: torch.export would make a constant of `len`.

    def _start(
        self, frames: int, sides: tuple[int, int], size: tuple[int, int, int], model: nn.Module
    ) -> None:
        """Set `base` and `size`.

        Args:
            frames: of the baseline's clips.
            sides: height and width of the baseline's clips.
            size: frames, height and width of a patch.
            model: the whole model.

        Raises:
            ValueError: the clips or patches are not square, or the model is for pre-training.
        """
        height, width = sides
        in_time, *in_space = size
        if height != width or in_space[0] != in_space[1]:
            raise ValueError(f"frames of {sides} and patches of {size} are not square")
        if hasattr(model, "decoder"):
            raise ValueError(
                f"{type(model).__name__} is for pre-training, and its decoder has positions of its "
                "own. Convert the model without the decoder"
            )
        self.size = (in_time, in_space[0])
        self._coverage = None
        self.base = self.patches(frames, height)

    def patches(self, frames: int, crop: int) -> Patches:
        """See `FollowsGrid`."""
        in_time, in_space = self.size
        if frames % in_time:
            raise ValueError(
                f"a patch is {in_time} frames, which do not divide {frames}. Choose long-cycle "
                f"factors or baseline frames (DATA.NUM_FRAMES) that give multiples of {in_time}"
            )
        if crop % in_space:
            raise ValueError(
                f"a patch is {in_space} pixels, which do not divide {crop}. Choose a multiple as "
                "the baseline's crop (DATA.TRAIN_CROP_SIZE). For coarser crops, give make_schedule "
                f"size_divisor={in_space} (MULTIGRID.SIZE_DIVISOR {in_space})"
            )
        return Patches(frames // in_time, crop // in_space, crop // in_space)

    def set_coverage(self, coverage: Tensor | None) -> None:
        """See `FollowsGrid`."""
        self._coverage = coverage

    @property
    def coverage(self: Any) -> Tensor | None:
        """Coverage of the current clips, or None in evaluation."""
        return self._coverage if self.training else None

    def _coverage_of(self, clips: int) -> Tensor | None:
        coverage = self.coverage
        if coverage is not None and len(coverage) not in (1, clips):
            raise ValueError(
                f"the batch has {clips} clips, but coverage was set for {len(coverage)}. Call "
                "multigrid.set_coverage with the coverage of each micro-batch before its forward"
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
        # The table is not a buffer. Keep it on the device instead of copying it in every forward.
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

        `interpolate_pos_encoding` is ignored, because positions always follow the grid.
        """
        embeddings, patches = _embed_patches(self.patch_embeddings.projection, pixel_values)
        own = self.position_embeddings[:, :1]
        table = self.position_embeddings[0, 1:]
        embeddings = embeddings + self._positions(table, patches, embeddings.shape[0])
        first = (self.cls_token + own).expand(embeddings.shape[0], -1, -1)
        output: Tensor = self.dropout(torch.cat((first, embeddings), dim=1))
        return output


class _TimeSformer(_Follower):
    """Embeddings of TimeSformer, which has one table for time and one for space."""

    def start(self: Any, model: nn.Module) -> None:
        if self.attention_type == "space_only":
            raise ValueError(
                "a TimeSformer with attention_type space_only has no positions in time, so it "
                "cannot be converted"
            )
        cut = self.patch_embeddings
        frames = self.time_embeddings.shape[1]
        self._start(frames, cut.image_size, (1, *cut.patch_size), model)
        # The layers read frames and crop from their config. Give them one that forward can update.
        self.now = SimpleNamespace(image_size=cut.image_size[0], patch_size=cut.patch_size[0])
        self.now.num_frames = frames
        for layer in model.modules():
            if type(layer).__name__ == "TimesformerLayer":
                layer.config = self.now

    def forward(self: Any, pixel_values: Tensor) -> Tensor:
        """Embed clips (N, T, 3, H, W) as tokens (N, 1 + patches, C).

        Patches are ordered by their place in the frame, then by frame.
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
    """Embeddings of V-JEPA 2, whose positions are in the rotary attention of every layer."""

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
        """Return token positions in time, height and width, in units of the baseline's patches."""
        if masks is not None:  # masks occur only in pre-training
            kept: tuple[Tensor, ...] = super().get_position_ids(x, masks)  # type: ignore[misc]
            return kept
        t, h, w = _places(self.now.base, self.now.patches, self.now.coverage, x.device)
        axes = (t[:, :, None, None], h[:, None, :, None], w[:, None, None])
        grid = torch.broadcast_tensors(*axes)  # type: ignore[no-untyped-call]
        return tuple(axis.flatten(1)[:, None].to(x.dtype) for axis in grid)


def _embed_patches(projection: nn.Module, pixel_values: Tensor) -> tuple[Tensor, Patches]:
    """Embed the patches of clips (N, T, 3, H, W).

    Returns:
        The embeddings, (N, patches, C), and the numbers of patches.
    """
    cut = projection(pixel_values.transpose(1, 2))
    return cut.flatten(2).mT, Patches(*cut.shape[2:])


_FOLLOWERS: dict[str, type[_Follower]] = {
    "VideoMAEEmbeddings": _VideoMAE,
    "TimesformerEmbeddings": _TimeSformer,
    "VivitEmbeddings": _ViViT,
    "VJEPA2Embeddings": _VJEPA2,
}
