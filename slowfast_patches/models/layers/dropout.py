"""Dropout with a mask for each clip of the data stream. A resumed run draws the same masks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

_DROPOUT = 1
"""Constant in the seed of every mask. It makes masks independent of other uses of RNG_SEED."""


class ClipDropout(nn.Dropout):
    """`nn.Dropout` with a separate mask for each clip of the data stream.

    The mask of a clip is drawn from a generator that is seeded with `seed` and the index of the
    clip in the stream. The mask does not depend on the other clips of the mini-batch, on the rank,
    or on earlier random numbers.

    Call `seed_dropout` before the forward pass to draw the masks: a compiled network cannot call
    NumPy. Without masks, and in evaluation, this module behaves like `nn.Dropout`.

    Args:
        p: Probability of an element to be zeroed.
        seed: Seed of the masks.
        features: Number of channels C of the input.

    Shape:
        Input and output: (N, ..., C), where the dimensions in the middle have size 1. A row is a
        clip of this process, or one of several rows of a clip.
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
            clips: Indices of the clips in the stream.
            counts: Number of rows of each clip.

        Returns:
            Mask of the elements to keep, (N, C) bool, on the CPU. N is the sum of `counts`.
        """
        generators = (np.random.default_rng((self.seed, number, _DROPOUT)) for number in clips)
        drawn = [
            rng.random((count, self.features), dtype=np.float32)
            for rng, count in zip(generators, counts, strict=True)
        ]
        return torch.from_numpy(np.concatenate(drawn) >= self.p)


def seed_dropout(
    model: nn.Module,
    clips: Sequence[int] | None,
    device: torch.device | None = None,
    counts: Sequence[int] | None = None,
) -> None:
    """Draw the masks for the next forward pass in every `ClipDropout` of a model.

    Transformers and registered models draw their masks from torch's global generator instead. If
    the model has the attribute `mask_seed`, this function seeds the global generator with
    `mask_seed` and the index of the first clip.

    Args:
        model: The model.
        clips: Indices of the clips in the data stream. None removes the masks, for clips that are
            not from the stream.
        device: Device of the model.
        counts: Number of rows of each clip. By default, each clip has one row.
    """
    mask_seed = getattr(model, "mask_seed", None)
    if mask_seed is not None and clips:
        sequence = np.random.SeedSequence((mask_seed, clips[0], _DROPOUT))
        torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0]))
    for module in model.modules():
        if isinstance(module, ClipDropout):
            module.kept = None
            if clips is not None and module.p < 1:
                module.kept = module.draw(clips, counts or [1] * len(clips))
                if device is not None and device.type == "cuda":
                    # Copy from pinned memory, so that the CPU does not wait for the GPU.
                    module.kept = module.kept.pin_memory().to(device, non_blocking=True)
