"""Embeddings of VideoMAE, TimeSformer, ViViT and V-JEPA 2 for clips of any shape."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.timesformer.modeling_timesformer import (
    TimesformerEmbeddings,
    TimesformerLayer,
)
from transformers.models.videomae.modeling_videomae import VideoMAEEmbeddings
from transformers.models.vivit.modeling_vivit import VivitEmbeddings
from transformers.models.vjepa2.modeling_vjepa2 import VJEPA2Embeddings, VJEPA2RopeAttention

from multigrid.errors import MultigridError
from multigrid.positions.interpolate import Patches, place_patches, place_positions
from multigrid.step_values import ReadsStep, StepValues


def follow_grid(embeddings: Any, model: nn.Module) -> None:
    """Make the embeddings of a model follow the shape of each clip.

    Args:
        embeddings: Module of one of the classes in `FOLLOWING`.
        model: The model that contains it.

    Raises:
        ValueError: Patches are not square, or the model is for pre-training.
    """
    config: Any = next(module.config for module in model.modules() if hasattr(module, "config"))
    tubelet = getattr(config, "tubelet_size", 1)
    if not isinstance(tubelet, (list, tuple)):  # ViViT has the size of a patch in all axes here.
        tubelet = (tubelet, config.patch_size, config.patch_size)
    if tubelet[1] != tubelet[2]:
        raise MultigridError(f"the model has patches of {tubelet}, but they must be square")
    if hasattr(model, "decoder"):
        raise MultigridError(
            f"{type(model).__name__} is for pre-training: convert_positions does not support "
            "the positions of the decoder. Convert a model without the decoder"
        )
    embeddings.__class__ = FOLLOWING[type(embeddings)]
    embeddings.step_values = StepValues()
    embeddings.size = tuple(tubelet[:2])
    frames = getattr(config, "num_frames", None) or config.frames_per_clip
    crop = getattr(config, "image_size", None) or config.crop_size
    embeddings.base = embeddings.patches(frames, crop)
    embeddings.start(model, config)


class _Following(ReadsStep):
    """Base class of the converted embedding modules. It implements `FollowsGrid`.

    Attributes:
        base: Number of patches of a baseline clip.
        size: Size (frames, pixels) of a patch.
    """

    base: Patches
    size: tuple[int, int]

    # Get the number of clips from `.shape[0]`, because torch.export turns `len` into a constant.

    def start(self, model: nn.Module, config: Any) -> None:
        """Change other modules of the model as needed. By default, do nothing."""

    def patches(self, frames: int, crop: int) -> Patches:
        """See `FollowsGrid`."""
        in_time, in_space = self.size
        if frames % in_time or crop % in_space:
            raise MultigridError(
                f"clips of {frames} frames of {crop}² pixels cannot be divided into patches of "
                f"{in_time} frames of {in_space}² pixels. Change DATA.NUM_FRAMES, "
                "DATA.TRAIN_CROP_SIZE or the long-cycle factors. For smaller crops, use "
                f"make_schedule(..., size_divisor={in_space}) or MULTIGRID.SIZE_DIVISOR {in_space}"
            )
        return Patches(frames // in_time, crop // in_space, crop // in_space)

    def set_coverage(self, coverage: Tensor | None) -> None:
        """See `FollowsGrid`."""
        self.step_values.coverage = coverage

    @property
    def current_coverage(self) -> Tensor | None:
        """Coverage of the current mini-batch. In evaluation mode, it is None, which means 1."""
        return self.step_values.coverage if self.training else None

    def embed(self: Any, pixel_values: Tensor, table: Tensor) -> Tensor:
        """Embed the patches of clips (N, T, 3, H, W) and their positions, as (N, patches, C)."""
        cut = self.patch_embeddings.projection(pixel_values.transpose(1, 2))
        patches = Patches(*cut.shape[2:])
        positions = table.to(cut)
        embeddings: Tensor = cut.flatten(2).mT + place_positions(
            positions, self.base, patches, self.current_coverage
        )
        return embeddings


class FollowingVideoMAE(_Following, VideoMAEEmbeddings):
    def forward(self: Any, pixel_values: Tensor, bool_masked_pos: Tensor | None = None) -> Tensor:
        """Embed clips (N, T, 3, H, W) as tokens (N, patches, C)."""
        # `model.to` does not move the table, because transformers does not register it as a buffer.
        self.position_embeddings = self.position_embeddings.to(pixel_values.device)
        assert bool_masked_pos is None, "masks are for pre-training"
        embeddings: Tensor = self.embed(pixel_values, self.position_embeddings[0])
        return embeddings


class FollowingViViT(_Following, VivitEmbeddings):
    def forward(self: Any, pixel_values: Tensor, interpolate_pos_encoding: bool = False) -> Tensor:
        """Embed clips (N, T, 3, H, W) as tokens (N, 1 + patches, C).

        `interpolate_pos_encoding` is ignored, because positions are always interpolated.
        """
        embeddings = self.embed(pixel_values, self.position_embeddings[0, 1:])
        first = (self.cls_token + self.position_embeddings[:, :1]).expand(len(embeddings), -1, -1)
        output: Tensor = self.dropout(torch.cat((first, embeddings), dim=1))
        return output


class FollowingTimeSformer(_Following, TimesformerEmbeddings):
    """Embeddings of TimeSformer, with one position table for time and one for space."""

    def start(self: Any, model: nn.Module, config: Any) -> None:
        """Let `forward` change the frames and the crop that the layers read from their config."""
        self.now = SimpleNamespace(patch_size=config.patch_size)
        for layer in model.modules():
            if isinstance(layer, TimesformerLayer):
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
        coverage = self.current_coverage
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


class FollowingVJEPA2(_Following, VJEPA2Embeddings):
    """Embeddings of V-JEPA 2, which applies rotary position embeddings in every attention layer."""

    def start(self: Any, model: nn.Module, config: Any) -> None:
        """Let `forward` tell the attention layers the shape of the clips."""
        self.now = SimpleNamespace(base=self.base, patches=self.base, coverage=None)
        for layer in list[Any](model.modules()):
            if isinstance(layer, VJEPA2RopeAttention):
                layer.__class__ = FollowingVJEPA2Rope
                layer.now = self.now

    def forward(self: Any, pixel_values_videos: Tensor) -> Tensor:
        """Embed clips (N, T, 3, H, W) as tokens (N, patches, C)."""
        frames, crop = pixel_values_videos.shape[1], pixel_values_videos.shape[-1]
        self.now.patches = self.patches(max(frames, self.size[0]), crop)
        self.now.coverage = self.current_coverage
        output: Tensor = VJEPA2Embeddings.forward(self, pixel_values_videos)
        return output


class FollowingVJEPA2Rope(VJEPA2RopeAttention):
    def get_position_ids(self: Any, x: Tensor, masks: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return token positions in time, height and width, as indices of the baseline's patches.

        The indices are fractional for clips of other shapes.
        """
        if masks is not None:  # Masks are only used in pre-training.
            kept: tuple[Tensor, ...] = super().get_position_ids(x, masks)  # type: ignore[no-untyped-call]
            return kept
        t, h, w = place_patches(self.now.base, self.now.patches, self.now.coverage, x.device)
        axes = (t[:, :, None, None], h[:, None, :, None], w[:, None, None])
        grid = torch.broadcast_tensors(*axes)  # type: ignore[no-untyped-call]
        return tuple(axis.flatten(1)[:, None].to(x.dtype) for axis in grid)


FOLLOWING: dict[type[nn.Module], type[_Following]] = {
    VideoMAEEmbeddings: FollowingVideoMAE,
    VivitEmbeddings: FollowingViViT,
    TimesformerEmbeddings: FollowingTimeSformer,
    VJEPA2Embeddings: FollowingVJEPA2,
}
"""Converted class of each class of embeddings."""
