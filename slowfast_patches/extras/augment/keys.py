"""Keys of augmentations: AUG."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from slowfast_patches.config.fields import (
    AT_LEAST_ONE,
    PART,
    Check,
    ExtraKeys,
    Rule,
    all_of,
    key,
    one_of,
    only_with,
)
from slowfast_patches.registry import AUGMENTATIONS, TASKS

_FORMAT = re.compile(r"(rand(-m(10|\d(\.\d+)?)|-n(10|[1-9])|-mstd\d+(\.\d+)?|-inc1)*)?")
"""Matches valid values of AUG.AA_TYPE, which are those of later PySlowFast releases."""
_RAND_AUGMENT = Check(
    lambda text: _FORMAT.fullmatch(text) is not None,
    "empty, or a text such as rand-m7-n4-mstd0.5-inc1 with the magnitude from 0 to 10 (m), the "
    "number of operations from 1 to 10 (n) and the standard deviation of the magnitude (mstd)",
)
_REGISTERED = Check(
    lambda names: all(name in AUGMENTATIONS for name in names),
    "a list of augmentations that modules of IMPORTS have registered",
)
_AUGMENTS = only_with("AUG.ENABLE", True)
_augmentation_key = partial(key, needs=_AUGMENTS)


@dataclass(frozen=True)
class AugKeys(ExtraKeys):
    enable: bool = key(
        False,
        "Augment training clips by RandAugment or colour jitter, then by random erasing. All "
        "frames of a clip are changed in the same way.",
    )
    aa_type: str = _augmentation_key(
        "rand-m9-mstd0.5-inc1",
        "RandAugment (Cubuk et al., 2020). Empty: off.",
        _RAND_AUGMENT,
    )
    color_jitter: float = key(
        0.4,
        "Strength s of colour jitter: brightness, contrast and saturation are each multiplied by a "
        "factor from 1 - s to 1 + s. Colour jitter is off if AA_TYPE is set.",
        PART,
        needs=all_of(_AUGMENTS, only_with("AUG.AA_TYPE", "")),
    )
    re_prob: float = _augmentation_key(
        0.25,
        "Fraction of the clips with random erasing (Zhong et al., 2020).",
        PART,
    )
    re_mode: str = _augmentation_key(
        "pixel",
        "Filling of erased rectangles: pixel is noise, const is the colour DATA.MEAN.",
        one_of("pixel", "const"),
    )
    re_count: int = _augmentation_key(
        1,
        "Number of erased rectangles in a clip. Several together erase the same area as one.",
        AT_LEAST_ONE,
    )
    custom: tuple[str, ...] = _augmentation_key(
        (),
        "Names of your own augmentations, which are applied after all others in the given order. "
        "Register them in a module of IMPORTS.",
        _REGISTERED,
    )


def _has_no_effect(recipe: Any) -> bool:
    keys = AugKeys.of(recipe)
    return keys.enable and not (keys.aa_type or keys.color_jitter or keys.re_prob or keys.custom)


def _of_boxes(recipe: Any) -> bool:
    return AugKeys.of(recipe).enable and not TASKS[recipe.task].scores_clips


RULES = (
    Rule(
        _has_no_effect,
        "AUG.ENABLE True has no effect, because AUG.AA_TYPE and AUG.CUSTOM are empty, and "
        "AUG.COLOR_JITTER and AUG.RE_PROB are 0. Set one of them, or set AUG.ENABLE False.",
    ),
    Rule(
        _of_boxes,
        "AUG.ENABLE True needs a task whose targets are for whole clips, because augmentations "
        "do not transform boxes. Set AUG.ENABLE False.",
    ),
)
