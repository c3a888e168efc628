"""Dropout with a mask for each clip of the data stream. A resumed run draws the same masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from multigrid.step_values import ReadsStep

_DROPOUT = 1
"""Constant in the seed of every mask. It makes masks independent of other uses of RNG_SEED."""


class ClipDropout(ReadsStep, nn.Dropout):
    """`nn.Dropout` with a separate mask for each clip of the data stream.

    The mask of a clip is drawn from a generator that is seeded with `seed` and the index of the
    clip in the stream. The mask does not depend on the other clips of the mini-batch, on the rank,
    or on earlier random numbers.

    Draw the masks before the forward pass, because a compiled network cannot call NumPy. Use `draw`
    and `StepState.set_masks`, or `seed_dropout`. Without masks, and in evaluation, this module
    behaves like `nn.Dropout`.

    Args:
        p: Probability of an element to be zeroed.
        seed: Seed of the masks.
        features: Number of channels C of the input.

    Shape:
        Input and output: (N, ..., C), where the dimensions in the middle have size 1. A row is a
        clip of this process, or one of several rows of a clip.
    """

    def __init__(self, p: float, seed: int, features: int) -> None:
        super().__init__(p)
        self.seed = seed
        self.features = features

    def forward(self, input: Tensor) -> Tensor:
        kept = self.step_values.masks.get(self)
        if not self.training or kept is None or self.p == 1:
            return super().forward(input)
        assert input.numel() == kept.numel(), (input.shape, kept.shape)
        factor = 1 / (1 - self.p)
        dropped: Tensor = _Drop.apply(input, kept.view(input.shape), factor)  # type: ignore[no-untyped-call]
        return dropped

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


class _Drop(torch.autograd.Function):
    """Product of an input, a mask and a factor. Each pass is a single operation."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, kept: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(kept)
        ctx.factor = factor
        dropped: Tensor = torch.ops.aten.native_dropout_backward(input, kept, factor)
        return dropped

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (kept,) = ctx.saved_tensors
        return torch.ops.aten.native_dropout_backward(grads[0], kept, ctx.factor), None, None


def seed_dropout(
    model: nn.Module, clips: Sequence[int] | None, counts: Sequence[int] | None = None
) -> None:
    """Draw the masks for the next forward pass in every `ClipDropout` of a model, on the CPU.

    Args:
        model: The model.
        clips: Indices of the clips in the data stream. None removes the masks, for clips that are
            not from the stream.
        counts: Number of rows of each clip. By default, each clip has one row.
    """
    layers = [module for module in model.modules() if isinstance(module, ClipDropout)]
    for layer in layers:
        masks = layer.step_values.masks
        masks.pop(layer, None)
        if clips is not None:
            masks[layer] = layer.draw(clips, counts or [1] * len(clips))
    if clips:
        seed_masks(model, clips[0])


def seed_masks(model: nn.Module, clip: int) -> None:
    """Seed torch's global generator with the index of a clip in the data stream.

    Transformers and registered models draw their masks from this generator. They have the attribute
    `mask_seed`. For a model without it, this function does nothing.
    """
    mask_seed = getattr(model, "mask_seed", None)
    if mask_seed is not None:
        sequence = np.random.SeedSequence((mask_seed, clip, _DROPOUT))
        torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0]))
