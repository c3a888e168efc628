"""FLOPs and shape checks of a recipe's model, computed on the meta device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from multigrid import Shape, check_patches
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.models.build_model import build_on_meta
from slowfast_patches.models.inputs import blank_inputs
from slowfast_patches.models.layers.replace import replace_modules
from slowfast_patches.tasks import task_of
from slowfast_patches.utils.errors import UserError

TRAINING_FACTOR = 3
"""FLOPs of a training step divided by the FLOPs of a forward pass. The backward pass takes twice as
many FLOPs as the forward pass."""

_LARGE = (128, 320)
"""Frames and crop of a clip that is large enough for the pooling of any model."""


def flops_per_clip(recipe: Recipe) -> Callable[[int, int], float]:
    """Return a function from (frames, crop) to the FLOPs of training a recipe's model on one clip.

    A multiply-add counts as two FLOPs, and a training step as three forward passes.
    """
    model, alpha = _build(recipe)

    @cache
    def count(frames: int, crop: int) -> float:
        counter = FlopCounterMode(display=False)
        with counter, torch.no_grad():
            model(*_arguments(recipe, frames, crop, alpha))
        return TRAINING_FACTOR * float(counter.get_total_flops())

    return count


def check_shapes(recipe: Recipe, shapes: Iterable[Shape]) -> None:
    """Check that a recipe's model accepts every shape.

    Raises:
        ValueError: The model does not accept a shape. The message names the keys to change.
    """
    model, alpha = _build(recipe)

    def run(frames: int, crop: int) -> Any:
        with torch.no_grad():
            return model(*_arguments(recipe, frames, crop, alpha))

    shapes = list(shapes)
    check_patches(model, [*shapes, replace(recipe.base_shape, crop=recipe.data.test_crop_size)])
    for shape in shapes:
        try:
            logits = run(shape.frames, shape.crop)
        except (RuntimeError, ValueError) as error:
            run(*_LARGE)  # If this fails too, the cause is not the shape: the model has a bug.
            raise UserError(
                f"{recipe.model.arch} cannot take the shape {shape} of this schedule ({error}). "
                "Increase DATA.NUM_FRAMES or DATA.TRAIN_CROP_SIZE, or use less pooling "
                "(NONLOCAL.POOL, SLOWFAST.ALPHA)."
            ) from error
        wanted = (1, recipe.model.num_classes)
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        if found != wanted:
            raise UserError(
                f"MODEL.ARCH {recipe.model.arch} must return logits (N, MODEL.NUM_CLASSES). For "
                f"one clip, it returned {found} instead of {wanted}. Correct the model."
            )


def _arguments(recipe: Recipe, frames: int, crop: int, alpha: int | None) -> tuple[Any, ...]:
    """Return the arguments for a forward pass on one blank clip."""
    task = task_of(recipe)
    labels = task.random_labels(1, crop, torch.Generator())
    batch = {"clips": labels, "flips": labels, "labels": labels}
    pathways = blank_inputs((1, frames, crop), alpha)
    return task.arguments(batch, lambda clips, flips: pathways, torch.device("cpu"))


def _build(recipe: Recipe) -> tuple[nn.Module, int | None]:
    """Return the model on the meta device without BN, and SLOWFAST.ALPHA or None.

    ALPHA is None for a model with one pathway. BN is removed because it is slow on the meta device:
    a SlowFast R50 spent 0.28 s of 0.30 s on BN. BN affects neither shapes nor FLOPs.
    """
    model = build_on_meta(recipe).train()
    model = replace_modules(model, nn.BatchNorm3d, lambda norm: nn.Identity())
    return model, recipe.slowfast.alpha if recipe.model.has_two_pathways else None
