"""Dropout whose masks belong to clips, so that they do not depend on the number of processes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["ClipDropout", "set_clips"]

_DROPOUT = 1
"""Keeps the generators of masks apart from others that are seeded by a seed and two numbers."""


class ClipDropout(nn.Dropout):
    """`nn.Dropout` that gives each clip of the stream a mask of its own.

    Input and output are (N, ...) with N the clips of this process. In training, the mask of the
    clip with number n in the stream is drawn from a generator seeded by (seed, n): it does not
    depend on the clips beside it, on the rank, or on what was drawn before. `clips` holds the N
    numbers, see `set_clips`; where it is None, and in evaluation, this is `nn.Dropout` itself.
    """

    clips: Sequence[int] | None = None

    def __init__(self, p: float, seed: int) -> None:
        super().__init__(p)
        self.seed = seed

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.clips is None or self.p in (0.0, 1.0):
            return super().forward(input)
        assert len(self.clips) == len(input), (len(self.clips), input.shape)
        kept = torch.from_numpy(np.stack([self._kept(n, input.shape[1:]) for n in self.clips]))
        if input.is_cuda:  # from pinned memory the copy waits for nothing
            kept = kept.pin_memory().to(input.device, non_blocking=True)
        return input * kept / (1 - self.p)

    def _kept(
        self, number: int, shape: torch.Size
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.bool]]:
        """Where the values of a clip stay."""
        rng = np.random.default_rng((self.seed, number, _DROPOUT))
        return rng.random(shape, dtype=np.float32) >= self.p


def set_clips(model: nn.Module, clips: Sequence[int] | None) -> None:
    """Tell every `ClipDropout` in `model` the numbers in the stream of the next N clips.

    None draws masks from torch's generator, for clips that are not of the training's stream.
    """
    for module in model.modules():
        if isinstance(module, ClipDropout):
            module.clips = clips
