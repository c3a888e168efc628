"""Rules for values of several keys that contradict each other, in one table.

`load_recipe` checks each key on its own. The rules are checked before a run starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain
from typing import Any

from multigrid.stage_rows import row_shapes
from slowfast_patches.config.fields import Rule
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.seams import SECTIONS
from slowfast_patches.utils.errors import UserError

_PLACEHOLDER = re.compile(r"\{([A-Z_.]+)\}")
_SURPLUS = (1.0, 0.1, 0.01, 0.001, 0.0001, 0.00001)
"""SOLVER.LRS in recipes of later PySlowFast releases, whatever the number of steps."""
_BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
"""Number of blocks in each stage, by RESNET.DEPTH."""
_MOST_STRIDE = 8
"""Maximum product of the spatial strides of the stages, after the stem with a stride of 4."""


def check_rules(recipe: Recipe) -> None:
    """Check all rules, including the rules of extras.

    Raises:
        UserError: A rule is broken. The message says which key to change.
    """
    for rule in (*RULES, *chain.from_iterable(section.rules for section in SECTIONS.values())):
        if rule.is_broken(recipe):
            raise UserError(_PLACEHOLDER.sub(lambda match: _text(recipe[match[1]]), rule.text))


def _text(value: Any) -> str:
    """Return a value as a user would write it: 20 instead of 20.0."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_text, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _trains(recipe: Recipe) -> bool:
    return recipe.train.enable


def _uses_sgd(recipe: Recipe) -> bool:
    return _trains(recipe) and recipe.solver.optimizing_method == "sgd"


def _has_steps(recipe: Recipe) -> bool:
    stepped = recipe.solver.lr_policy == "steps_with_relative_lrs"
    return _trains(recipe) and stepped and not recipe.multigrid.stages


def fewest_frames(recipe: Recipe) -> int:
    """Return the number of frames of the shortest clip of the schedule."""
    return min(_frame_counts(recipe))


def _frame_counts(recipe: Recipe) -> set[int]:
    """Return the numbers of frames of all clips of the schedule, and of the test."""
    frames = recipe.data.num_frames
    counts = {frames}
    if recipe.train.enable and recipe.multigrid.long_cycle:
        counts |= {round(frames * time) for time, _ in recipe.multigrid.long_cycle_factors}
    if recipe.train.enable:
        counts |= {shape[1] for row in recipe.multigrid.stages for shape in row_shapes(row)}
    return counts


def _is_resnet(recipe: Recipe) -> bool:
    return recipe.model.spec.is_resnet


def _is_slowfast(recipe: Recipe) -> bool:
    return _is_resnet(recipe) and recipe.model.has_two_pathways


def _values(stages: Iterable[Any]) -> list[int]:
    """Return all numbers of a nested tuple."""
    numbers = list[int]()
    for stage in stages:
        numbers += _values(stage) if isinstance(stage, tuple) else [stage]
    return numbers


def _total_stride(recipe: Recipe) -> int:
    product = 1
    for stage in recipe.resnet.spatial_strides:
        product *= stage[0]
    return product


def _has_missing_block(recipe: Recipe) -> bool:
    blocks = _BLOCKS[recipe.resnet.depth]
    stages = zip(recipe.nonlocal_.location, blocks, strict=True)
    return any(not 0 <= index < count for stage, count in stages for index in _values(stage))


def _has_missing_kernel(recipe: Recipe) -> bool:
    blocks = _BLOCKS[recipe.resnet.depth]
    stages = zip(recipe.resnet.num_block_temp_kernel, blocks, strict=True)
    return any(not 0 <= number <= count for stage, count in stages for number in stage)


RULES = (
    Rule(
        lambda r: (
            _uses_sgd(r)
            and r.solver.nesterov
            and (r.solver.momentum == 0 or r.solver.dampening != 0)
        ),
        "SOLVER.NESTEROV True needs SOLVER.MOMENTUM above 0 and SOLVER.DAMPENING 0, but they are "
        "{SOLVER.MOMENTUM} and {SOLVER.DAMPENING}. Set SOLVER.NESTEROV False.",
    ),
    Rule(
        lambda r: _trains(r) and not 0 <= r.solver.warmup_epochs < r.solver.max_epoch,
        "SOLVER.WARMUP_EPOCHS {SOLVER.WARMUP_EPOCHS} must be at least 0 and less than "
        "SOLVER.MAX_EPOCH {SOLVER.MAX_EPOCH}. Shorten the warm-up.",
    ),
    Rule(
        lambda r: _has_steps(r) and max(r.solver.steps, default=0) > r.solver.max_epoch,
        "SOLVER.STEPS {SOLVER.STEPS} must end before SOLVER.MAX_EPOCH {SOLVER.MAX_EPOCH}. To "
        "shorten a whole recipe, keep both and set SOLVER.LENGTH, for example to 0.25.",
    ),
    Rule(
        lambda r: _has_steps(r) and r.solver.steps and r.solver.steps[0] != 0,
        "SOLVER.STEPS {SOLVER.STEPS} must start with 0, the epoch at which the first stage starts.",
    ),
    Rule(
        lambda r: _has_steps(r) and list(r.solver.steps) != sorted(set(r.solver.steps)),
        "SOLVER.STEPS {SOLVER.STEPS} must be in ascending order.",
    ),
    Rule(
        lambda r: (
            _has_steps(r)
            and r.solver.lrs
            and len(r.solver.lrs) != max(1, len(r.solver.steps))
            and not (r.solver.lrs == _SURPLUS and len(r.solver.steps) < len(_SURPLUS))
        ),
        "SOLVER.LRS {SOLVER.LRS} must have one value for each of SOLVER.STEPS {SOLVER.STEPS}.",
    ),
    Rule(
        lambda r: (
            r.solver.class_weights
            and r.solver.class_weights != "balanced"
            and len(r.solver.class_weights) != r.model.num_classes
        ),
        "SOLVER.CLASS_WEIGHTS {SOLVER.CLASS_WEIGHTS} must have one weight for each of the "
        "MODEL.NUM_CLASSES {MODEL.NUM_CLASSES} classes, or be balanced.",
    ),
    Rule(
        lambda r: (
            r.model.has_two_pathways
            and any(frames % r.slowfast.alpha for frames in _frame_counts(r))
        ),
        "SLOWFAST.ALPHA {SLOWFAST.ALPHA} must divide the number of frames of each shape: of "
        "DATA.NUM_FRAMES {DATA.NUM_FRAMES}, and with a long cycle of its products with "
        "MULTIGRID.LONG_CYCLE_FACTORS. Change SLOWFAST.ALPHA or DATA.NUM_FRAMES.",
    ),
    Rule(
        lambda r: _is_slowfast(r) and r.slowfast.beta_inv % r.slowfast.fusion_conv_channel_ratio,
        "SLOWFAST.BETA_INV {SLOWFAST.BETA_INV} must be a multiple of "
        "SLOWFAST.FUSION_CONV_CHANNEL_RATIO {SLOWFAST.FUSION_CONV_CHANNEL_RATIO}. Change one of "
        "them.",
    ),
    Rule(
        lambda r: _is_slowfast(r) and r.resnet.width_per_group % r.slowfast.beta_inv,
        "RESNET.WIDTH_PER_GROUP {RESNET.WIDTH_PER_GROUP} must be a multiple of SLOWFAST.BETA_INV "
        "{SLOWFAST.BETA_INV}. Change one of them.",
    ),
    Rule(
        lambda r: _is_slowfast(r) and r.slowfast.fusion_kernel_sz % 2 == 0,
        "SLOWFAST.FUSION_KERNEL_SZ {SLOWFAST.FUSION_KERNEL_SZ} must be odd.",
    ),
    Rule(
        lambda r: (
            _is_slowfast(r) and any(len(set(stage)) > 1 for stage in r.resnet.spatial_strides)
        ),
        "RESNET.SPATIAL_STRIDES {RESNET.SPATIAL_STRIDES} must be equal in both pathways.",
    ),
    Rule(
        lambda r: (
            _is_resnet(r)
            and min(_values((*r.resnet.spatial_strides, *r.resnet.spatial_dilations))) < 1
        ),
        "RESNET.SPATIAL_STRIDES {RESNET.SPATIAL_STRIDES} and RESNET.SPATIAL_DILATIONS "
        "{RESNET.SPATIAL_DILATIONS} must be 1 or more.",
    ),
    Rule(
        lambda r: _is_resnet(r) and _total_stride(r) > _MOST_STRIDE,
        "RESNET.SPATIAL_STRIDES {RESNET.SPATIAL_STRIDES} must have a product of at most 8, because "
        "the head pools over features with a stride of 32 pixels.",
    ),
    Rule(
        lambda r: _is_resnet(r) and _has_missing_kernel(r),
        "RESNET.NUM_BLOCK_TEMP_KERNEL {RESNET.NUM_BLOCK_TEMP_KERNEL} must be from 0 to the number "
        "of blocks of each stage. The stages of RESNET.DEPTH 50 have 3, 4, 6 and 3 blocks, and "
        "those of 101 have 3, 4, 23 and 3.",
    ),
    Rule(
        lambda r: _is_resnet(r) and _has_missing_block(r),
        "NONLOCAL.LOCATION {NONLOCAL.LOCATION} names a block that does not exist. The stages of "
        "RESNET.DEPTH 50 have 3, 4, 6 and 3 blocks, and those of 101 have 3, 4, 23 and 3, from 0.",
    ),
    Rule(
        lambda r: (
            _is_resnet(r)
            and (
                min(_values((*r.nonlocal_.group, *r.nonlocal_.pool))) < 1
                or any(len(pool) != 3 for stage in r.nonlocal_.pool for pool in stage)
            )
        ),
        "NONLOCAL.GROUP {NONLOCAL.GROUP} must be 1 or more, and NONLOCAL.POOL {NONLOCAL.POOL} must "
        "have three numbers of 1 or more for each pathway.",
    ),
    Rule(
        lambda r: (
            len(r.data.train_jitter_scales) != 2
            or not r.data.train_crop_size
            <= r.data.train_jitter_scales[0]
            <= r.data.train_jitter_scales[1]
        ),
        "DATA.TRAIN_JITTER_SCALES {DATA.TRAIN_JITTER_SCALES} must be [min, max] of the short side "
        "in pixels, with min at least DATA.TRAIN_CROP_SIZE {DATA.TRAIN_CROP_SIZE}.",
    ),
    Rule(
        lambda r: r.train.compile and (not r.model.spec.compiles or r.model.act_checkpoint),
        "TRAIN.COMPILE {TRAIN.COMPILE} needs a model that compiles to a single graph (MODEL.ARCH "
        "is {MODEL.ARCH}), and MODEL.ACT_CHECKPOINT False, because torch.compile decides which "
        "activations to store. Set TRAIN.COMPILE False.",
    ),
)
"""The first broken rule is reported, so general rules come before special ones."""
