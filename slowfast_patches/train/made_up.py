"""Mini-batches of noise, as a loader would hand them over: to try a shape, and to time it."""

from __future__ import annotations

import torch
from torch import Tensor

from multigrid import Batch, Shape, empty_clips
from slowfast_patches.config.recipe import Recipe

__all__ = ["made_up_batch"]


def made_up_batch(recipe: Recipe, clips: int, shape: Shape) -> Batch:
    """`clips` clips of a shape's frames and crop, in pinned memory where the loader's are.

    The noise is of a generator of its own; torch's stays as it is.
    """
    noise = torch.Generator().manual_seed(recipe.rng_seed)
    pixels = empty_clips(clips, shape.frames, shape.crop).random_(0, 256, generator=noise)
    flips = torch.rand(clips, generator=noise) < (0.5 if recipe.data.random_flip else 0.0)
    tensors = [pixels, _labels(recipe, clips, noise), flips]
    if recipe.data_loader.pin_memory and recipe.num_gpus > 0:
        tensors = [tensor.pin_memory() for tensor in tensors]
    pixels, labels, flips = tensors
    return Batch(clips=pixels, labels=labels, flips=flips, iteration=0, failures=[])


def _labels(recipe: Recipe, clips: int, noise: torch.Generator) -> Tensor:
    classes = recipe.model.num_classes
    if recipe.data.multi_label:
        return torch.randint(0, 2, (clips, classes), generator=noise).float()
    return torch.randint(0, classes, (clips,), generator=noise)
