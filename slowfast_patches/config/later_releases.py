"""Keys of other PySlowFast releases: those without effect, and those that are translated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slowfast_patches.config.fields import Ignored, Translated, Values
from slowfast_patches.registry import MODELS
from slowfast_patches.seams import SECTIONS
from slowfast_patches.utils.errors import UserError


def ignored_key(name: str) -> Ignored | None:
    """Return the entry of a key or of its section, such as `DEMO.*`, or None."""
    ignored = ignored_keys()
    return ignored.get(name) or ignored.get(name.partition(".")[0] + ".*")


def ignored_keys() -> dict[str, Ignored]:
    """Return the keys that have no effect, including the keys of extras."""
    found = dict(IGNORED)
    for section in SECTIONS.values():
        found |= section.ignored
    return found


def _rates_of_one_machine(scales: bool, values: Values) -> dict[str, Any]:
    if not scales:
        return {}
    if values["SOLVER.REFERENCE_BATCH_SIZE"]:
        raise UserError(
            "SOLVER.BASE_LR_SCALE_NUM_SHARDS True and SOLVER.REFERENCE_BATCH_SIZE would both "
            "scale the learning rates. Set SOLVER.BASE_LR_SCALE_NUM_SHARDS False or "
            "SOLVER.REFERENCE_BATCH_SIZE 0."
        )
    return {"SOLVER.REFERENCE_BATCH_SIZE": values["TRAIN.BATCH_SIZE"]}


_DEFAULT_CROP = 224
_DEFAULT_CHANNELS = [3, 3]
"""Defaults of PySlowFast for DATA.CROP_SIZE and DATA.INPUT_CHANNEL_NUM."""


def _check_crop(crop: int, values: Values) -> dict[str, Any]:
    # A printed config of PySlowFast names all keys, also this one with its default.
    train = values["DATA.TRAIN_CROP_SIZE"]
    if crop not in (train, _DEFAULT_CROP):
        raise UserError(
            f"DATA.CROP_SIZE {crop} does not match DATA.TRAIN_CROP_SIZE {train}. Remove "
            "DATA.CROP_SIZE: its value follows from DATA.TRAIN_CROP_SIZE."
        )
    return {}


def _check_channels(channels: tuple[int, ...], values: Values) -> dict[str, Any]:
    arch = values["MODEL.ARCH"]
    wanted = MODELS[arch].input_channels
    if list(channels) not in (wanted, _DEFAULT_CHANNELS):
        raise UserError(
            f"DATA.INPUT_CHANNEL_NUM {list(channels)} does not match MODEL.ARCH {arch}, which "
            f"takes RGB clips in each pathway: {wanted}. Remove DATA.INPUT_CHANNEL_NUM."
        )
    return {}


TRANSLATED: Mapping[str, Translated] = {
    "DATA.CROP_SIZE": Translated(
        int,
        "The value follows from DATA.TRAIN_CROP_SIZE. Another value is refused, except the "
        "default 224 of PySlowFast.",
        _check_crop,
    ),
    "DATA.INPUT_CHANNEL_NUM": Translated(
        tuple[int, ...],
        "The value follows from MODEL.ARCH. Another value is refused, except the default [3, 3] of "
        "PySlowFast.",
        _check_channels,
    ),
    "SOLVER.BASE_LR_SCALE_NUM_SHARDS": Translated(
        bool,
        "True sets SOLVER.REFERENCE_BATCH_SIZE to the value of TRAIN.BATCH_SIZE, so that all "
        "learning rates are multiplied by NUM_SHARDS.",
        _rates_of_one_machine,
    ),
}
"""Keys of PySlowFast that other keys replace."""

_BN_GROUPS = (
    "Set the number of clips that share BN statistics: MULTIGRID.BN_BASE_SIZE with a long or short "
    "cycle, and BN.GROUP_SIZE without."
)
_BASELINE = "The shape of the baseline's mini-batch follows from other keys. Set {}."
_MODEL = "MODEL.ARCH alone decides which model is built. Set MODEL.ARCH."
_FORMAT = "The format of a weight file is detected. Remove the key."

IGNORED: Mapping[str, Ignored] = {
    "BN.NORM_TYPE": Ignored(_BN_GROUPS, ("batchnorm",)),
    "BN.NUM_SPLITS": Ignored(_BN_GROUPS, (1,)),
    "BN.NUM_SYNC_DEVICES": Ignored(_BN_GROUPS, (1,)),
    "BN.GLOBAL_SYNC": Ignored(_BN_GROUPS, (False,)),
    "BN.EPSILON": Ignored("The models always use 1e-5. Remove the key.", (1e-5,)),
    "BN.MOMENTUM": Ignored("The models always use 0.1. Remove the key.", (0.1,)),
    "MULTIGRID.DEFAULT_B": Ignored(_BASELINE.format("TRAIN.BATCH_SIZE"), (0,)),
    "MULTIGRID.DEFAULT_T": Ignored(_BASELINE.format("DATA.NUM_FRAMES"), (0,)),
    "MULTIGRID.DEFAULT_S": Ignored(_BASELINE.format("DATA.TRAIN_CROP_SIZE"), (0,)),
    "MULTIGRID.LONG_CYCLE_SAMPLING_RATE": Ignored(
        "The temporal stride of a clip is drawn between the baseline's stride and the stride at "
        "which the clip spans as much time as a baseline clip. Set DATA.SAMPLING_RATE.",
        (0,),
    ),
    "DATA_LOADER.ENABLE_MULTI_THREAD_DECODE": Ignored(
        "Each worker decodes with one thread. Set DATA_LOADER.NUM_WORKERS.", (False,)
    ),
    "DATA.DECODING_BACKEND": Ignored("Videos are always read with PyAV. Set pyav.", ("pyav",)),
    "MODEL.MODEL_NAME": Ignored(_MODEL, ("SlowFast", "ResNet")),
    "MODEL.SINGLE_PATHWAY_ARCH": Ignored(_MODEL),
    "MODEL.MULTI_PATHWAY_ARCH": Ignored(_MODEL, (["slowfast"],)),
    "RESNET.TRANS_FUNC": Ignored(
        "The blocks are always bottleneck_transform. PySlowFast cannot build its basic_transform.",
        ("bottleneck_transform",),
    ),
    "SOLVER.STEP_SIZE": Ignored("No learning-rate policy uses this key. Set SOLVER.STEPS.", (1,)),
    "SOLVER.WARMUP_FACTOR": Ignored(
        "Set SOLVER.WARMUP_START_LR, the learning rate at which the warm-up starts.", (0.1,)
    ),
    "SOLVER.LARS_TRUST": Ignored("LARS is not supported. Remove the key.", (0.001,)),
    "TRAIN.CHECKPOINT_TYPE": Ignored(_FORMAT, ("pytorch", "caffe2")),
    "TEST.CHECKPOINT_TYPE": Ignored(_FORMAT, ("pytorch", "caffe2")),
    "TRAIN.CHECKPOINT_EPOCH_RESET": Ignored(
        "Training from TRAIN.CHECKPOINT_FILE_PATH always starts at iteration 0. To resume the run "
        "in OUTPUT_DIR, set TRAIN.AUTO_RESUME True.",
        (False, True),
    ),
    "TENSORBOARD.*": Ignored(
        "TensorBoard event files with all scalars are always written to OUTPUT_DIR. Nothing else "
        "can be logged to TensorBoard. Remove the section.",
        (True, "", 0, False, None),
    ),
    "DEMO.*": Ignored("This package has no camera demo. Remove the section.", (False,)),
}
"""Keys of PySlowFast 1.0 and of its later releases that have no effect, or `SECTION.*`."""
