"""Table of the keys of other PySlowFast releases that this package treats differently.

Each key in the table is translated to keys of this package or has no effect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)

Values = Mapping[str, Any]
"""Values by full key, such as "SOLVER.BASE_LR"."""


class LaterKey(NamedTuple):
    """Treatment of one key of another release.

    Attributes:
        note: Text that says how the key is translated, or why it has no effect and what to do.
        quiet: Values that cause no warning although the key has no effect.
        translate: Function that takes all values and returns the values to set. None if the key
            has no effect.
    """

    note: str
    quiet: tuple[object, ...] = ()
    translate: Callable[[Values], dict[str, Any]] | None = None


def ignored_key(name: str) -> LaterKey | None:
    """Return the table entry of a key that has no effect, or None for any other key.

    The entry of the key itself takes precedence over the entry of its section, such as `DEMO.*`.
    """
    row = LATER_RELEASES.get(name) or LATER_RELEASES.get(name.partition(".")[0] + ".*")
    return row if row and row.translate is None else None


def translate(values: dict[str, Any]) -> None:
    """Convert config values of other PySlowFast releases, in place.

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
            "scale the learning rates. Set SOLVER.BASE_LR_SCALE_NUM_SHARDS False or "
            "SOLVER.REFERENCE_BATCH_SIZE 0."
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
    """Return a dict with the first `count` values of a key's list, and warn about dropped values.

    The dict is empty if the learning-rate policy has no stages.
    """
    if values["SOLVER.LR_POLICY"] != "steps_with_relative_lrs":
        return {}
    if dropped := values[key][count:]:
        logger.warning(
            f"The end of {key}, {list(dropped)}, has no effect and is dropped. SOLVER.STEPS has "
            f"{max(1, count)} stages before SOLVER.MAX_EPOCH {values['SOLVER.MAX_EPOCH']:g}, and "
            "each stage has one learning rate."
        )
    return {key: values[key][:count]}


_BN_GROUPS = (
    "Set the number of clips that share BN statistics: MULTIGRID.BN_BASE_SIZE with a long or short "
    "cycle, and BN.GROUP_SIZE without."
)
_BASELINE = "The shape of the baseline's mini-batch follows from other keys. Set {}."
_MODEL = "MODEL.ARCH alone decides which model is built. Set MODEL.ARCH."
_COLOURS = "Colours are not augmented for AVA. Remove the key."

LATER_RELEASES: Mapping[str, LaterKey] = {
    "MODEL.ARCH": LaterKey("`slow` becomes `slowonly`.", translate=_arch),
    "SOLVER.BASE_LR_SCALE_NUM_SHARDS": LaterKey(
        "True sets SOLVER.REFERENCE_BATCH_SIZE to the value of TRAIN.BATCH_SIZE, so that all "
        "learning rates are multiplied by NUM_SHARDS.",
        translate=_rates_of_one_machine,
    ),
    "SOLVER.STEPS": LaterKey(
        "A last value equal to SOLVER.MAX_EPOCH is dropped with a warning.",
        translate=_reached_steps,
    ),
    "SOLVER.LRS": LaterKey(
        "Learning rates beyond the number of stages are dropped with a warning.",
        translate=_reached_rates,
    ),
    "BN.NORM_TYPE": LaterKey(_BN_GROUPS, ("batchnorm",)),
    "BN.NUM_SPLITS": LaterKey(_BN_GROUPS, (1,)),
    "BN.NUM_SYNC_DEVICES": LaterKey(_BN_GROUPS, (1,)),
    "BN.GLOBAL_SYNC": LaterKey(_BN_GROUPS, (False,)),
    "BN.EPSILON": LaterKey("The models always use 1e-5. Remove the key.", (1e-5,)),
    "BN.MOMENTUM": LaterKey("The models always use 0.1. Remove the key.", (0.1,)),
    "MULTIGRID.DEFAULT_B": LaterKey(_BASELINE.format("TRAIN.BATCH_SIZE"), (0,)),
    "MULTIGRID.DEFAULT_T": LaterKey(_BASELINE.format("DATA.NUM_FRAMES"), (0,)),
    "MULTIGRID.DEFAULT_S": LaterKey(_BASELINE.format("DATA.TRAIN_CROP_SIZE"), (0,)),
    "MULTIGRID.LONG_CYCLE_SAMPLING_RATE": LaterKey(
        "The temporal stride of a clip is drawn between the baseline's stride and the stride at "
        "which the clip spans as much time as a baseline clip. Set DATA.SAMPLING_RATE.",
        (0,),
    ),
    "DATA.DECODING_BACKEND": LaterKey("Videos are always read with PyAV. Set pyav.", ("pyav",)),
    "MODEL.MODEL_NAME": LaterKey(_MODEL, ("SlowFast", "ResNet")),
    "MODEL.SINGLE_PATHWAY_ARCH": LaterKey(_MODEL),
    "MODEL.MULTI_PATHWAY_ARCH": LaterKey(_MODEL, (["slowfast"],)),
    "SOLVER.STEP_SIZE": LaterKey("No learning-rate policy uses this key. Set SOLVER.STEPS.", (1,)),
    "SOLVER.WARMUP_FACTOR": LaterKey(
        "Set SOLVER.WARMUP_START_LR, the learning rate at which the warm-up starts.", (0.1,)
    ),
    "SOLVER.LARS_TRUST": LaterKey("LARS is not supported. Remove the key.", (0.001,)),
    "MIXUP.LABEL_SMOOTH_VALUE": LaterKey("Set MODEL.LABEL_SMOOTHING.", (0,)),
    "AUG.NUM_SAMPLE": LaterKey("An epoch always has one clip of each video. Remove the key.", (1,)),
    "AUG.INTERPOLATION": LaterKey(
        "Geometric augmentations always interpolate bilinearly. Remove the key.",
        ("bilinear", "bicubic"),
    ),
    "AUG.RE_SPLIT": LaterKey("Random erasing applies to all clips. Remove the key.", (False,)),
    "TRAIN.CHECKPOINT_EPOCH_RESET": LaterKey(
        "Training from TRAIN.CHECKPOINT_FILE_PATH always starts at iteration 0. To resume the run "
        "in OUTPUT_DIR, set TRAIN.AUTO_RESUME True.",
        (False, True),
    ),
    "TENSORBOARD.*": LaterKey(
        "TensorBoard event files with all scalars are always written to OUTPUT_DIR. Nothing else "
        "can be logged to TensorBoard. Remove the section.",
        (True, "", 0, False, None),
    ),
    "AVA.BGR": LaterKey("Set DATA.REVERSE_INPUT_CHANNEL.", (False,)),
    "AVA.IMG_PROC_BACKEND": LaterKey(
        "There is only one image backend. Remove the key.", ("cv2", "pytorch")
    ),
    "AVA.TEST_FORCE_FLIP": LaterKey("Test clips are never flipped. Remove the key.", (False,)),
    "AVA.TRAIN_USE_COLOR_AUGMENTATION": LaterKey(_COLOURS, (False,)),
    "AVA.TRAIN_PCA_JITTER_ONLY": LaterKey(_COLOURS, (True, False)),
    "AVA.TRAIN_PCA_EIGVAL": LaterKey(_COLOURS, ([0.225, 0.224, 0.229],)),
    "AVA.TRAIN_PCA_EIGVEC": LaterKey(_COLOURS),
    "DEMO.*": LaterKey("This package has no camera demo. Remove the section.", (False,)),
}
"""Keys of PySlowFast 1.0 and of its later releases that are translated or have no effect."""
