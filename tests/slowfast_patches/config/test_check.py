"""Checks of several keys: errors that say what to change, and warnings about unused keys."""

from dataclasses import replace

import pytest

from slowfast_patches.config import check_recipe, load_recipe
from slowfast_patches.registry import TASKS

CHARADES = (
    "TRAIN.DATASET charades TEST.DATASET charades MODEL.NUM_CLASSES 157 DATA.MULTI_LABEL True "
    "MODEL.LOSS_FUNC bce_logit MODEL.HEAD_ACT sigmoid DATA.ENSEMBLE_METHOD max"
)
"""What the later releases' Charades recipes say of labels."""


STEPS = "SOLVER.LR_POLICY steps_with_relative_lrs"


def check(overrides: str) -> None:
    check_recipe(load_recipe(None, overrides.split()))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        # One key: a row for each check of config/fields.py that several keys have.
        ("TEST.NUM_SPATIAL_CROPS 2", "must be 1 or 3, not 2"),
        ("MODEL.ARCH x3d", "MODEL.ARCH must be slowfast, slowonly"),
        ("TRAIN.BATCH_SIZE 0", "TRAIN.BATCH_SIZE must be 1 or more, not 0"),
        ("DATA_LOADER.NUM_WORKERS -1", "must be from 0 to 10,000, or auto, not -1"),
        ("MODEL.EMA_DECAY 1.0", "MODEL.EMA_DECAY must be in [0, 1)"),
        ("MULTIGRID.LONG_CYCLE_FACTORS [[0.5,0.5]]", "that ends with [1, 1], not [[0.5, 0.5]]"),
        ("DATA.STD [0,1,1]", "DATA.STD must be a list of 3 numbers above 0"),
        ("RESNET.SPATIAL_STRIDES [[1,1],[2,2]]", "an entry for each of the 4 stages"),
        ("DATA.NUM_FRAMES 1000000000", "DATA.NUM_FRAMES must be from 1 to 65,536"),
        ("MULTIGRID.SHORT_CYCLE_FACTORS [0.5,0]", "factors in (0, 1]"),
        ("RNG_SEED 18446744073709551616", "RNG_SEED must be from 0 to 2**63 - 1"),
        ("SOLVER.GAMMA -1", "SOLVER.GAMMA must be above 0"),
        ("SOLVER.LRS [1,-0.1]", "SOLVER.LRS must be a list of numbers from 0"),
        ("SOLVER.MOMENTUM 1.5", "SOLVER.MOMENTUM must be in [0, 1)"),
        ("NONLOCAL.INSTANTIATION gaussian", "must be dot_product or softmax, not 'gaussian'"),
        # Several keys: rows of the table of rules.
        ("SOLVER.MOMENTUM 0", "needs SOLVER.MOMENTUM above 0 and SOLVER.DAMPENING 0, but they"),
        ("SOLVER.DAMPENING 0.5", "Set SOLVER.NESTEROV False"),
        (f"{STEPS} SOLVER.STEPS [5,10]", "STEPS [5, 10] must start with 0"),
        (f"{STEPS} SOLVER.STEPS [0,20,10]", "STEPS [0, 20, 10] must be in ascending"),
        (f"{STEPS} SOLVER.STEPS [0,10] SOLVER.LRS [1,0.1,0.01]", "one value for each of SOLVER.ST"),
        (f"{STEPS} SOLVER.STEPS [0,10,20] SOLVER.LRS [1,0.1]", "one value for each of SOLVER.STEP"),
        (f"{STEPS} SOLVER.LRS [1,0.1]", "one value for each of SOLVER.STEPS []"),
        ("SLOWFAST.ALPHA 3", "SLOWFAST.ALPHA 3 must divide the number of frames"),
        ("SLOWFAST.ALPHA 8 MULTIGRID.LONG_CYCLE True", "8 must divide the number of frames"),
        ("SLOWFAST.BETA_INV 3", "3 must be a multiple of SLOWFAST.FUSION_CONV_CHANNEL_RATIO 2"),
        ("RESNET.WIDTH_PER_GROUP 12", "12 must be a multiple of SLOWFAST.BETA_INV 8"),
        ("SLOWFAST.FUSION_KERNEL_SZ 4", "FUSION_KERNEL_SZ 4 must be odd"),
        ("RESNET.SPATIAL_STRIDES [[1,1],[2,1],[2,2],[2,2]]", "must be equal in both pathways"),
        ("RESNET.SPATIAL_STRIDES [[1,1],[2,2],[2,2],[0,0]]", "must be 1 or more"),
        ("RESNET.SPATIAL_DILATIONS [[1,1],[1,1],[1,1],[0,1]]", "must be 1 or more"),
        ("RESNET.SPATIAL_STRIDES [[2,2],[2,2],[2,2],[2,2]]", "must have a product of at most 8"),
        ("RESNET.NUM_BLOCK_TEMP_KERNEL [[4,4],[4,4],[6,6],[3,3]]", "to the number of blocks"),
        ("RESNET.NUM_BLOCK_TEMP_KERNEL [[3,3],[-1,4],[6,6],[3,3]]", "must be from 0"),
        ("NONLOCAL.LOCATION [[[],[]],[[4],[]],[[],[]],[[],[]]]", "a block that does not exist"),
        ("NONLOCAL.GROUP [[1,1],[0,1],[1,1],[1,1]]", "NONLOCAL.GROUP [[1, 1], [0, 1], [1, 1], [1"),
        (f"NONLOCAL.POOL [{','.join(['[[1,2],[1,2,2]]'] * 4)}]", "three numbers of 1 or more"),
        (
            f"NONLOCAL.POOL [{','.join(['[[1,2,2],[1,2,2],[1,2,2]]'] * 4)}]",
            "does not match MODEL.ARCH slowfast, which needs 2 values for each stage",
        ),
        ("DATA.CROP_SIZE 112", "Remove DATA.CROP_SIZE"),
        ("SOLVER.MAX_EPOCH 30 SOLVER.WARMUP_EPOCHS 34", "Shorten the warm-up"),
        (
            "SOLVER.LR_POLICY steps_with_relative_lrs SOLVER.STEPS [0,10,21] SOLVER.MAX_EPOCH 20",
            "before SOLVER.MAX_EPOCH 20. To shorten a whole recipe, keep both and set",
        ),
        ("TRAIN.BATCH_SIZE 6 NUM_SHARDS 2 NUM_GPUS 4", "12 clips (TRAIN.BATCH_SIZE times NUM_SH"),
        ("SOLVER.CLASS_WEIGHTS [1,2]", "one weight for each of the MODEL.NUM_CLASSES 400"),
        ("DATA.TEST_CROP_SIZE 192", "Set DATA.TEST_CROP_SIZE to 224 or more"),
        ("DATA.TRAIN_JITTER_SCALES [200,320]", "at least DATA.TRAIN_CROP_SIZE 224"),
        ("DATA.TRAIN_JITTER_SCALES [256]", "TRAIN_JITTER_SCALES [256] must be [min, max]"),
        ("SLOWFAST.BETA_INV 1", "must be a multiple of SLOWFAST.FUSION_CONV_CHANNEL_RATIO 2"),
        ("MODEL.ARCH slowonly RESNET.SPATIAL_STRIDES [[1,1],[2,2],[2,2],[2,2]]", "needs 1 values"),
        ("RESNET.SPATIAL_STRIDES [[1,1],[2,2],[],[2,2]]", "needs 2 values for each stage"),
        ("DATA.INPUT_CHANNEL_NUM [3]", "INPUT_CHANNEL_NUM [3] does not match MODEL.ARCH slowfast"),
        ("RESNET.SPATIAL_STRIDES [[1],[2],[2],[2]]", "STRIDES [[1], [2], [2], [2]] does not match"),
        ("TRAIN.COMPILE True MODEL.ACT_CHECKPOINT True", "Set TRAIN.COMPILE False"),
        ("TRAIN.COMPILE reduce-overhead", "overwrite the scores"),
        ("TRAIN.COMPILE max-autotune", "max-autotune-no-cudagraphs"),
        ("MODEL.LOSS_FUNC bce_logit", "not possible with DATA.MULTI_LABEL False"),
        (f"{CHARADES} MODEL.HEAD_ACT softmax", "Set MODEL.HEAD_ACT sigmoid"),
    ],
)
def test_what_cannot_run_is_refused_with_a_way_out(overrides, message):
    with pytest.raises(ValueError) as caught:
        check(overrides)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        "",
        f"{CHARADES} DATA.ENSEMBLE_METHOD sum",
        f"{CHARADES} TRAIN.ENABLE False TRAIN.DATASET kinetics",  # of what is not run
        "TRAIN.DATASET cats TEST.DATASET cats",  # of one's own
        # Of recipes of later releases, which have six rates whatever the number of steps.
        f"{STEPS} SOLVER.STEPS [0,94] SOLVER.LRS [1,0.1,0.01,0.001,0.0001,0.00001]",
        "TRAIN.ENABLE False SOLVER.MOMENTUM 0",
        "SOLVER.OPTIMIZING_METHOD adam",
        "SLOWFAST.ALPHA 2 MULTIGRID.LONG_CYCLE True SOLVER.OPTIMIZING_METHOD adam "
        "SOLVER.BATCH_RATE_RULE sqrt",
        # Without larger mini-batches, there is no larger rate.
        "SLOWFAST.ALPHA 2 MULTIGRID.LONG_CYCLE True SOLVER.OPTIMIZING_METHOD adam "
        "MULTIGRID.BATCH_EXPONENT 0",
    ],
)
def test_what_can_run_passes_without_a_word(overrides, caplog):
    check(overrides)
    assert not caplog.records


def test_a_task_checks_the_recipe_itself(monkeypatch):
    checked = list[object]()
    spec = replace(TASKS["single_label"], check=checked.append)
    monkeypatch.setitem(TASKS.entries, "single_label", spec)
    recipe = load_recipe(None)
    check_recipe(recipe)
    assert checked == [recipe]


CYCLE = "SLOWFAST.ALPHA 2 MULTIGRID.LONG_CYCLE True"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("SOLVER.STEPS [0,10]", "SOLVER.STEPS [0.0, 10.0] has no effect"),
        ("NUM_GPUS 0 DIST_BACKEND nccl", "DIST_BACKEND nccl has no effect with NUM_GPUS 0"),
        ("SOLVER.LRS [1]", "SOLVER.LRS [1.0] has no effect with SOLVER.LR_POLICY cosine"),
        (f"{STEPS} SOLVER.COSINE_END_LR 0.1", "COSINE_END_LR 0.1 has no effect with SOLVER.LR_P"),
        ("SOLVER.GAMMA 0.2", "SOLVER.GAMMA 0.2 has no effect with SOLVER.LR_POLICY cosine"),
        (f"{STEPS} SOLVER.LRS [1] SOLVER.GAMMA 0.2", "GAMMA 0.2 has no effect with SOLVER.LRS"),
        ("SOLVER.OPTIMIZING_METHOD adamw SOLVER.MOMENTUM 0.8", "MOMENTUM 0.8 has no effect with"),
        ("SOLVER.WARMUP_START_LR 0.2", "0.2 has no effect with SOLVER.WARMUP_EPOCHS 0"),
        (f"{CYCLE} SOLVER.OPTIMIZING_METHOD adamw", "Set SOLVER.BATCH_RATE_RULE sqrt"),
        ("MULTIGRID.FINE_TUNING False", "FINE_TUNING False has no effect without a cycle"),
        (f"{CYCLE} BN.GROUP_SIZE 4", "BN.GROUP_SIZE 4 has no effect with a cycle"),
        ("TRAIN.BATCH_SIZE 4 BN.GROUP_SIZE 8", "BN.GROUP_SIZE 8 is more than the global batch"),
        (f"{CYCLE} TRAIN.BATCH_SIZE 4", "BN_BASE_SIZE 8 is more than the global batch of 4 clips"),
    ],
)
def test_what_has_no_effect_is_said_once(overrides, message, caplog):
    check(overrides)
    (record,) = caplog.records
    assert message in record.getMessage()


def test_a_test_on_another_data_set_is_said(caplog):
    check("TRAIN.DATASET ssv2 TEST.DATASET kinetics TRAIN.ENABLE False")
    assert not caplog.text
    check("TRAIN.DATASET ssv2 TEST.DATASET kinetics")
    assert "Set TEST.DATASET ssv2" in caplog.text
