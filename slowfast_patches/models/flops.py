"""Operation counts, and whether a model takes a shape at all: from a model without weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from multigrid import Shape, check_patches
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.models.build import build_on_meta
from slowfast_patches.models.inputs import blank_head_inputs, blank_inputs

__all__ = ["TRAINING_FACTOR", "check_shapes", "flops_by_module", "flops_per_clip"]

TRAINING_FACTOR = 3
"""FLOPs of a training step over those of its forward: the backward takes twice as many."""


def flops_per_clip(recipe: Recipe) -> Callable[[int, int], float]:
    """Training FLOPs of one clip of (frames, crop): three times the forward's, counting a
    multiply-add as two."""
    by_module = flops_by_module(recipe)
    return lambda frames, crop: TRAINING_FACTOR * by_module(frames, crop)[""]


def flops_by_module(recipe: Recipe) -> Callable[[int, int], dict[str, float]]:
    """The forward's operations for one clip of (frames, crop), by module.

    Keys are the names of `named_modules`; a module has those of the modules in it, too, and "" all.
    Modules without counted operations, as BN, may be missing.
    """
    model, alpha = _build(recipe)
    prefix = f"{type(model).__name__}."

    @cache
    def count(frames: int, crop: int) -> dict[str, float]:
        counter = FlopCounterMode(display=False)
        with counter, torch.no_grad():
            model(blank_inputs((1, frames, crop), alpha), *blank_head_inputs(recipe, 1, crop))
        counts = {"": float(counter.get_total_flops())}
        for name, by_operator in counter.get_flop_counts().items():
            if name.startswith(prefix):
                counts[name.removeprefix(prefix)] = float(sum(by_operator.values()))
        return counts

    return count


def check_shapes(recipe: Recipe, shapes: Iterable[Shape]) -> None:
    """Try every shape on the model.

    Raises:
        ValueError: the model cannot take a shape; the message has what to change.
    """
    model, alpha = _build(recipe)
    tested = replace(recipe.base_shape, crop=recipe.data.test_crop_size)
    shapes = list(shapes)
    check_patches(model, [*shapes, tested])
    for shape in shapes:
        if alpha is not None and shape.frames < alpha:
            raise ValueError(
                f"SLOWFAST.ALPHA {alpha} leaves the slow pathway without a frame at {shape}: use "
                f"an ALPHA of at most {shape.frames}, or more DATA.NUM_FRAMES"
            )
        try:
            with torch.no_grad():
                boxes = blank_head_inputs(recipe, 1, shape.crop)
                model(blank_inputs((1, shape.frames, shape.crop), alpha), *boxes)
        except RuntimeError as error:
            raise ValueError(
                f"{recipe.model.arch} cannot take the shape {shape} of this schedule ({error}); "
                "use more DATA.NUM_FRAMES, a larger DATA.TRAIN_CROP_SIZE, or less pooling "
                "(NONLOCAL.POOL, SLOWFAST.ALPHA)"
            ) from error


def _build(recipe: Recipe) -> tuple[nn.Module, int | None]:
    """The model without weights and without BN, which has no part in shapes and counts; its alpha.

    Without weights, BN is computed in Python: it took 0.28 of the 0.30 s of a SlowFast R50.
    """
    model = build_on_meta(recipe).train()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.BatchNorm3d):
                setattr(module, name, nn.Identity())
    return model, recipe.slowfast.alpha if recipe.model.has_two_pathways else None
