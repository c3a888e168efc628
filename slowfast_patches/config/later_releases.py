"""How recipes of PySlowFast's other releases are read: one row for each key.

A key either is translated to keys of this package or has no effect. AUG.AA_TYPE is neither: it
keeps its text, which rand_augment.py parses.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)

Values = Mapping[str, Any]
"""Values by full key."""


class LaterKey(NamedTuple):
    """How one key is read.

    Attributes:
        note: What the key becomes, or why it has no effect and what to write instead.
        quiet: Values of a key without effect that cause no warning.
        translate: Returns the keys to set instead; None if the key has no effect.
    """

    note: str
    quiet: tuple[object, ...] = ()
    translate: Callable[[Values], dict[str, Any]] | None = None


def ignored_key(name: str) -> LaterKey | None:
    """Return the row of a key without effect, or None if the key has one.

    The row of the full key takes precedence over that of its section, such as `DEMO.*`.
    """
    row = LATER_RELEASES.get(name) or LATER_RELEASES.get(name.partition(".")[0] + ".*")
    return row if row and row.translate is None else None


def translate(values: dict[str, Any]) -> None:
    """Replace values of other releases, in place.

    Raises:
        ValueError: Two keys contradict each other.
    """
    for row in LATER_RELEASES.values():
        if row.translate:
            values |= row.translate(values)


def _arch(values: Values) -> dict[str, Any]:
    return {"MODEL.ARCH": "slowonly"} if values["MODEL.ARCH"] == "slow" else {}


def _rates_of_one_machine(values: Values) -> dict[str, Any]:
    if not values["SOLVER.BASE_LR_SCALE_NUM_SHARDS"]:
        return {}
    if values["SOLVER.REFERENCE_BATCH_SIZE"]:
        raise ValueError(
            "SOLVER.BASE_LR_SCALE_NUM_SHARDS True and SOLVER.REFERENCE_BATCH_SIZE would both "
            "scale the learning rates. Set one of them to False or 0."
        )
    return {
        "SOLVER.REFERENCE_BATCH_SIZE": values["TRAIN.BATCH_SIZE"],
        "SOLVER.BASE_LR_SCALE_NUM_SHARDS": False,
    }


def _reached_steps(values: Values) -> dict[str, Any]:
    steps = values["SOLVER.STEPS"]
    count = len(steps)
    while count > 1 and steps[count - 1] == values["SOLVER.MAX_EPOCH"]:
        count -= 1
    return _first("SOLVER.STEPS", count, values)


def _reached_rates(values: Values) -> dict[str, Any]:
    return _first("SOLVER.LRS", max(1, len(values["SOLVER.STEPS"])), values)


def _first(key: str, count: int, values: Values) -> dict[str, Any]:
    """Keep the first `count` values of a list and warn about the others."""
    if values["SOLVER.LR_POLICY"] != "steps_with_relative_lrs":
        return {}
    if dropped := values[key][count:]:
        logger.warning(
            f"The end of {key}, {list(dropped)}, has no effect and is dropped. SOLVER.STEPS has "
            f"{max(1, count)} stages before SOLVER.MAX_EPOCH {values['SOLVER.MAX_EPOCH']:g}, each "
            "with one rate."
        )
    return {key: values[key][:count]}


_BN_GROUPS = (
    "BN statistics are over a number of clips. Set BN.GROUP_SIZE, or with a cycle "
    "MULTIGRID.BN_BASE_SIZE."
)
_BASELINE = "The baseline's mini-batch follows from other keys. Set {}."
_MODEL = "MODEL.ARCH alone decides which model is built. Set that."
_COLOURS = "Colours are not augmented for AVA. Leave it out."

LATER_RELEASES: Mapping[str, LaterKey] = {
    "MODEL.ARCH": LaterKey("`slow` becomes `slowonly`.", translate=_arch),
    "SOLVER.BASE_LR_SCALE_NUM_SHARDS": LaterKey(
        "True becomes SOLVER.REFERENCE_BATCH_SIZE with the value of TRAIN.BATCH_SIZE, so that all "
        "rates are multiplied by NUM_SHARDS.",
        translate=_rates_of_one_machine,
    ),
    "SOLVER.STEPS": LaterKey(
        "A last step at SOLVER.MAX_EPOCH is dropped with a warning.", translate=_reached_steps
    ),
    "SOLVER.LRS": LaterKey(
        "Rates beyond the number of stages are dropped with a warning.", translate=_reached_rates
    ),
    "BN.NORM_TYPE": LaterKey(_BN_GROUPS, ("batchnorm",)),
    "BN.NUM_SPLITS": LaterKey(_BN_GROUPS, (1,)),
    "BN.NUM_SYNC_DEVICES": LaterKey(_BN_GROUPS, (1,)),
    "BN.GLOBAL_SYNC": LaterKey(_BN_GROUPS, (False,)),
    "BN.EPSILON": LaterKey("PySlowFast 1.0 builds its models with 1e-5. Leave it out.", (1e-5,)),
    "BN.MOMENTUM": LaterKey("PySlowFast 1.0 builds its models with 0.1. Leave it out.", (0.1,)),
    "MULTIGRID.DEFAULT_B": LaterKey(_BASELINE.format("TRAIN.BATCH_SIZE"), (0,)),
    "MULTIGRID.DEFAULT_T": LaterKey(_BASELINE.format("DATA.NUM_FRAMES"), (0,)),
    "MULTIGRID.DEFAULT_S": LaterKey(_BASELINE.format("DATA.TRAIN_CROP_SIZE"), (0,)),
    "MULTIGRID.LONG_CYCLE_SAMPLING_RATE": LaterKey(
        "The stride of a shape is drawn between the baseline's stride and the stride that keeps "
        "the baseline's span. Set DATA.SAMPLING_RATE.",
        (0,),
    ),
    "DATA.DECODING_BACKEND": LaterKey("Videos are read with PyAV. Set pyav.", ("pyav",)),
    "MODEL.MODEL_NAME": LaterKey(_MODEL, ("SlowFast", "ResNet")),
    "MODEL.SINGLE_PATHWAY_ARCH": LaterKey(_MODEL),
    "MODEL.MULTI_PATHWAY_ARCH": LaterKey(_MODEL, (["slowfast"],)),
    "SOLVER.STEP_SIZE": LaterKey("No learning-rate policy reads it. Set SOLVER.STEPS.", (1,)),
    "SOLVER.WARMUP_FACTOR": LaterKey(
        "The warm-up starts at SOLVER.WARMUP_START_LR. Set that.", (0.1,)
    ),
    "SOLVER.LARS_TRUST": LaterKey("LARS was removed. Leave it out.", (0.001,)),
    "MIXUP.LABEL_SMOOTH_VALUE": LaterKey(
        "Labels are smoothed by MODEL.LABEL_SMOOTHING. Set that.", (0,)
    ),
    "AUG.NUM_SAMPLE": LaterKey("An epoch has one clip of each video. Leave it out.", (1,)),
    "AUG.INTERPOLATION": LaterKey(
        "Geometric augmentations are bilinear. Leave it out.", ("bilinear", "bicubic")
    ),
    "AUG.RE_SPLIT": LaterKey("Random erasing applies to all clips. Leave it out.", (False,)),
    "TRAIN.CHECKPOINT_EPOCH_RESET": LaterKey(
        "Training from TRAIN.CHECKPOINT_FILE_PATH always starts at iteration 0. To resume the run "
        "in OUTPUT_DIR, set TRAIN.AUTO_RESUME True.",
        (False, True),
    ),
    "TENSORBOARD.*": LaterKey(
        "Scalars are always written to OUTPUT_DIR as TensorBoard event files, and nothing else "
        "is. Leave it out.",
        (True, "", 0, False, None),
    ),
    "AVA.BGR": LaterKey("Set DATA.REVERSE_INPUT_CHANNEL.", (False,)),
    "AVA.IMG_PROC_BACKEND": LaterKey(
        "All clips are read in the same way. Leave it out.", ("cv2", "pytorch")
    ),
    "AVA.TEST_FORCE_FLIP": LaterKey("Test clips are never flipped. Leave it out.", (False,)),
    "AVA.TRAIN_USE_COLOR_AUGMENTATION": LaterKey(_COLOURS, (False,)),
    "AVA.TRAIN_PCA_JITTER_ONLY": LaterKey(_COLOURS, (True, False)),
    "AVA.TRAIN_PCA_EIGVAL": LaterKey(_COLOURS, ([0.225, 0.224, 0.229],)),
    "AVA.TRAIN_PCA_EIGVEC": LaterKey(_COLOURS),
    "DEMO.*": LaterKey("There is no demo on a camera. Leave the section out.", (False,)),
}
"""Keys of PySlowFast 1.0 and of its later releases that are translated or have no effect."""
