"""Dropout with a mask for each clip of the data stream, so that a resumed run draws the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

_DROPOUT = 1
"""Part of the seed of every mask, which separates masks from other uses of a recipe's seed."""


class ClipDropout(nn.Dropout):
    """`nn.Dropout` with a separate mask for each clip of the data stream.

    The mask of clip n of the stream is drawn from a generator seeded by (`seed`, n). It does not
    depend on the other clips of the mini-batch, on the rank, or on earlier random numbers.

    `seed_dropout` draws the masks before the forward pass, because a compiled network cannot draw
    them by NumPy. Without masks, and in evaluation, this module is `nn.Dropout`.

    Args:
        p: Probability of an element to be zeroed.
        seed: Seed of the masks.
        features: Number of channels C of the input.

    Shape:
        Input and output: (N, ..., C), with one value per channel and row. A row is a clip of this
        process or one of its boxes.
    """

    kept: Tensor | None = None
    """Mask of the elements to keep, (N, C) bool, on the device of the input."""

    def __init__(self, p: float, seed: int, features: int) -> None:
        super().__init__(p)
        self.seed = seed
        self.features = features

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.kept is None:
            return super().forward(input)
        assert input.numel() == self.kept.numel(), (input.shape, self.kept.shape)
        return input * self.kept.view(input.shape) / (1 - self.p)

    def draw(self, clips: Sequence[int], counts: Sequence[int]) -> Tensor:
        """Draw the masks of some clips.

        Args:
            clips: Numbers of the clips in the stream.
            counts: Number of rows of each clip.

        Returns:
            The elements to keep, (N, C) bool, on the CPU.
        """
        generators = [np.random.default_rng((self.seed, number, _DROPOUT)) for number in clips]
        drawn = [
            rng.random((count, self.features), dtype=np.float32) >= self.p
            for rng, count in zip(generators, counts, strict=True)
        ]
        return torch.from_numpy(np.concatenate(drawn))


def seed_dropout(
    model: nn.Module,
    clips: Sequence[int] | None,
    device: torch.device | None = None,
    counts: Sequence[int] | None = None,
) -> None:
    """Draw the dropout masks of the next clips in every `ClipDropout` of a model.

    A transformer draws masks of many shapes from torch's global generator instead. If the model has
    a `mask_seed`, this function seeds that generator by (`mask_seed`, number of the first clip).

    Args:
        model: The model.
        clips: Numbers of the clips in the data stream. None removes the masks, for clips from
            outside the stream.
        device: The device that the model computes on.
        counts: Number of boxes of each clip. By default each clip has one row.
    """
    mask_seed = getattr(model, "mask_seed", None)
    if mask_seed is not None and clips:
        sequence = np.random.SeedSequence((mask_seed, clips[0], _DROPOUT))
        torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0]))
    for module in model.modules():
        if isinstance(module, ClipDropout):
            module.kept = None
            if clips is not None and module.p not in (0.0, 1.0):
                module.kept = module.draw(clips, counts or [1] * len(clips))
                if device is not None and device.type == "cuda":
                    # A copy from pinned memory does not synchronise with the GPU.
                    module.kept = module.kept.pin_memory().to(device, non_blocking=True)
