"""Keys of mixup and cutmix: MIXUP."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from slowfast_patches.config.fields import (
    FROM_ZERO,
    PART,
    ExtraKeys,
    Rule,
    key,
    only_with,
    speed_key,
)
from slowfast_patches.registry import TASKS

_mixing_key = partial(key, needs=only_with("MIXUP.ENABLE", True))


def _with_pairs(recipe: Any) -> str | None:
    micro_batches = recipe.world_size * recipe.solver.accumulation_steps
    alone = recipe.base_shape.batch < 2 * micro_batches
    return "with a single clip in each micro-batch" if alone else None


@dataclass(frozen=True)
class MixupKeys(ExtraKeys):
    enable: bool = speed_key(
        False,
        "Blend the clips of a mini-batch in pairs, together with their labels, by mixup or by "
        "cutmix.",
        needs=_with_pairs,
    )
    alpha: float = _mixing_key(
        0.8,
        "Mixup (Zhang et al., 2018): the weight of a clip is drawn from Beta(ALPHA, ALPHA). 0 uses "
        "cutmix only.",
        FROM_ZERO,
    )
    cutmix_alpha: float = _mixing_key(
        1.0,
        "Cutmix (Yun et al., 2019): a rectangle in all frames is copied from the other clip of the "
        "pair. The fraction of the frame that it covers is drawn from Beta(CUTMIX_ALPHA, "
        "CUTMIX_ALPHA). 0 uses mixup only.",
        FROM_ZERO,
    )
    prob: float = _mixing_key(1.0, "Fraction of the clips that are blended.", PART)
    switch_prob: float = _mixing_key(
        0.5,
        "Fraction of the blended clips that use cutmix, if both alphas are above 0.",
        PART,
    )


def _without_alphas(recipe: Any) -> bool:
    keys = MixupKeys.of(recipe)
    return keys.enable and not keys.alpha and not keys.cutmix_alpha


def _of_boxes(recipe: Any) -> bool:
    return MixupKeys.of(recipe).enable and not TASKS[recipe.task].scores_clips


RULES = (
    Rule(
        _without_alphas,
        "MIXUP.ENABLE True needs MIXUP.ALPHA or MIXUP.CUTMIX_ALPHA above 0, but both are 0. Set "
        "one of them, or set MIXUP.ENABLE False.",
    ),
    Rule(
        _of_boxes,
        "MIXUP.ENABLE True needs a task whose targets are for whole clips, because boxes cannot "
        "be blended. Set MIXUP.ENABLE False.",
    ),
)
