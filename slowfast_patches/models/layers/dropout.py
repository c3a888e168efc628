"""Dropout whose masks belong to clips, so that a run that is continued draws them again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["ClipDropout", "SeededMasks", "set_clips"]

_DROPOUT = 1
"""Keeps the generators of masks apart from others that are seeded by a seed and two numbers."""


class ClipDropout(nn.Dropout):
    """`nn.Dropout` that gives each clip of the stream a mask of its own.

    Input and output are (N, ..., C) with N the clips of this process, or their boxes, and one value
    of each of the C features. In training, the masks of the clip with number n in the stream are
    drawn from a generator seeded by (seed, n): they do not depend on the clips beside it, on the
    rank, or on what was drawn before. `kept`, which `set_clips` makes, says what stays, (N, C) bool
    on the input's device; where it is None, and in evaluation, this is `nn.Dropout` itself.

    The masks are made before the forward: drawn in it, by NumPy, they could not be part of a
    compiled network.
    """

    kept: Tensor | None = None

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
        """Where the features of clips stay, (N, C) bool, on the CPU; a clip has a count of rows."""
        generators = [np.random.default_rng((self.seed, number, _DROPOUT)) for number in clips]
        drawn = [
            rng.random((count, self.features), dtype=np.float32) >= self.p
            for rng, count in zip(generators, counts, strict=True)
        ]
        return torch.from_numpy(np.concatenate(drawn))


class SeededMasks:
    """A model whose modules draw masks from torch's generator, whatever their number and shape.

    `set_clips` seeds the generator by (`mask_seed`, n), n the number of the first of the next
    clips: the masks are those of these clips together, and do not depend on what was drawn before.
    """

    mask_seed: int


def set_clips(
    model: nn.Module,
    clips: Sequence[int] | None,
    device: torch.device | None = None,
    counts: Sequence[int] | None = None,
) -> None:
    """Draw the masks of the next clips, by their numbers in the stream, in every `ClipDropout` of
    `model`, which computes on `device`; of `SeededMasks`, seed torch's generator. `counts` are the
    clips' boxes; without, each clip has one row.

    None leaves masks to torch's generator, for clips that are not of the training's stream.
    """
    if isinstance(model, SeededMasks) and clips:
        sequence = np.random.SeedSequence((model.mask_seed, clips[0], _DROPOUT))
        torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0]))
    for module in model.modules():
        if isinstance(module, ClipDropout):
            module.kept = None
            if clips is not None and module.p not in (0.0, 1.0):
                module.kept = module.draw(clips, counts or [1] * len(clips))
                if device is not None and device.type == "cuda":
                    # from pinned memory the copy waits for nothing
                    module.kept = module.kept.pin_memory().to(device, non_blocking=True)
