"""Checks of several keys: errors that say what to change, and warnings about unused keys."""

import pytest

from slowfast_patches.config import check_recipe, load_recipe

CHARADES = (
    "TRAIN.DATASET charades TEST.DATASET charades MODEL.NUM_CLASSES 157 DATA.MULTI_LABEL True "
    "MODEL.LOSS_FUNC bce_logit MODEL.HEAD_ACT sigmoid DATA.ENSEMBLE_METHOD max"
)
"""What the later releases' Charades recipes say of labels."""


def check(overrides: str = "", per_machine: int = 1) -> None:
    recipe = load_recipe(None, overrides.split())
    check_recipe(recipe.replaced({"PROCESSES_PER_MACHINE": per_machine}))


def refusal(overrides: str, per_machine: int = 1) -> str:
    with pytest.raises(ValueError) as caught:
        check(overrides, per_machine)
    return str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        # One key: each kind of check in config/recipe.py.
        ("TEST.NUM_SPATIAL_CROPS 2", "must be 1 or 3, not 2"),
        ("MODEL.ARCH x3d", "MODEL.ARCH must be slowfast, slowonly"),
        ("TRAIN.BATCH_SIZE 0", "TRAIN.BATCH_SIZE must be 1 or more, not 0 (the command line)"),
        ("RNG_SEED -1", "RNG_SEED must be 0 or more, not -1 (the command line)"),
        ("DATA.NUM_FRAMES 1000000000", "DATA.NUM_FRAMES must be from 1 to 65,536, not 1000000000"),
        ("SOLVER.MAX_EPOCH 1e9", "SOLVER.MAX_EPOCH must be above 0 and at most 100,000"),
        ("DIST_JOIN_SECONDS 1e300", "DIST_JOIN_SECONDS must be above 0 and at most 1,000,000,000"),
        ("SOLVER.LENGTH 0", "SOLVER.LENGTH must be above 0"),
        ("NUM_GPUS 4294967295", "NUM_GPUS must be from 0 to 1,024"),
        ("RESNET.DEPTH 18", "RESNET.DEPTH must be 50 or 101"),
        ("DATA_LOADER.NUM_WORKERS -1", "must be 0 or more, or auto, not -1"),
        ("MULTIGRID.EPOCH_FACTOR 0", "MULTIGRID.EPOCH_FACTOR must be above 0"),
        ("MODEL.EMA_DECAY 1.0", "MODEL.EMA_DECAY must be in [0, 1)"),
        ("DATA.MAX_BAD_FRACTION 5", "DATA.MAX_BAD_FRACTION must be in [0, 1]"),
        ("DATA.TRAIN_CROP_SIZE 16", "32 pixels or more"),
        ("TSM.SHIFT_DIV 1", "2 or more, or 0"),
        ("TEST.SAVE_RESULTS_PATH a.txt", "ends in .csv"),
        ("MULTIGRID.LONG_CYCLE_FACTORS [[0.5,0.5]]", "that ends with [1, 1], not [[0.5, 0.5]]"),
        ("MULTIGRID.LONG_CYCLE_FACTORS [[2,1],[1,1]]", "[frames, crop] in (0, 1]"),
        ("MULTIGRID.SHORT_CYCLE_FACTORS [0.5,0]", "factors in (0, 1]"),
        ("DETECTION.ENABLE True MODEL.LOSS_FUNC bce_logit", "bce, or DETECTION.ENABLE False"),
        # Several.
        ("SOLVER.MAX_EPOCH 30 SOLVER.WARMUP_EPOCHS 34", "Shorten the warm-up"),
        ("DATA.TEST_CROP_SIZE 192", "Set DATA.TEST_CROP_SIZE to 224 or more"),
        ("DATA.TRAIN_JITTER_SCALES [200,320]", "at least DATA.TRAIN_CROP_SIZE 224"),
        (
            "DATA.INPUT_CHANNEL_NUM [3]",
            "DATA.INPUT_CHANNEL_NUM [3] does not match MODEL.ARCH slowfast",
        ),
        ("RESNET.SPATIAL_STRIDES [[1],[2],[2],[2]]", "STRIDES [[1], [2], [2], [2]] does not match"),
        ("RESNET.SPATIAL_STRIDES [[1,1],[2,2]]", "an entry for each of the 4 stages"),
        ("SLOWFAST.BETA_INV 1", "must be at least SLOWFAST.FUSION_CONV_CHANNEL_RATIO 2"),
        ("SOLVER.WARMUP_START_LR -1", "SOLVER.WARMUP_START_LR must be 0 or more, not -1"),
        ("SOLVER.CLIP_GRAD_L2NORM -1", "CLIP_GRAD_L2NORM must be 0 or more, or None, not -1"),
        ("DATA.STD [0,1,1]", "DATA.STD must be a list of 3 numbers above 0"),
        ("TRAIN.COMPILE True MODEL.ACT_CHECKPOINT True", "Set one of the two keys to False"),
        ("TRAIN.COMPILE fast", "TRAIN.COMPILE must be False, True, default, reduce-overhead or"),
        ("MIXUP.ENABLE True MIXUP.ALPHA 0 MIXUP.CUTMIX_ALPHA 0", "Set one of them above 0, or"),
        ("MIXUP.ENABLE True TRAIN.BATCH_SIZE 1", "needs two clips in each micro-batch"),
        # Labels.
        ("MODEL.LOSS_FUNC bce_logit", "LOSS_FUNC cross_entropy, or DATA.MULTI_LABEL True"),
        ("MODEL.HEAD_ACT sigmoid", "Set MODEL.HEAD_ACT softmax, or DATA.MULTI_LABEL True"),
        (f"{CHARADES} MODEL.HEAD_ACT softmax", "MODEL.HEAD_ACT sigmoid, or DATA.MULTI_LABEL Fal"),
    ],
)
def test_what_cannot_run_is_refused_with_a_way_out(overrides, message):
    assert message in refusal(overrides)


STRIDES = "RESNET.SPATIAL_STRIDES [[1,1],[2,2],[2,2],[1,1]]"
BOXES = "DETECTION.ENABLE True"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("", "DETECTION.SPATIAL_SCALE_FACTOR 16 does not match RESNET.SPATIAL_STRIDES [[1, 1],"),
        (f"{STRIDES} TEST.NUM_ENSEMBLE_VIEWS 10", "a key frame has only one temporal view. Set"),
        (
            f"{STRIDES} MIXUP.ENABLE True",
            "MIXUP.ENABLE True is not possible with DETECTION.ENABLE True",
        ),
        (f"{STRIDES} TRAIN.COMPILE True", "numbers of boxes. Set TRAIN.COMPILE False"),
        (f"{STRIDES} DATA.ENSEMBLE_METHOD max", "Set DATA.ENSEMBLE_METHOD sum"),
        (f"{STRIDES} DATA.CLIP_SAMPLING segments", "Set DATA.CLIP_SAMPLING auto"),
        ("MODEL.ARCH hf", "no feature map to pool boxes from"),
        (f"{STRIDES} MODEL.HEAD_ACT softmax", "Set MODEL.HEAD_ACT sigmoid, or DETECTION.ENABLE"),
    ],
)
def test_what_boxes_cannot_have_is_refused(overrides, message):
    check(f"{BOXES} MODEL.LOSS_FUNC bce {STRIDES}")
    assert message in refusal(f"{BOXES} {overrides}")


def test_keys_of_boxes_without_detection_are_said_to_have_no_effect(caplog):
    check("AVA.FULL_TEST_ON_VAL True DETECTION.ALIGNED False")
    warned = [record.getMessage() for record in caplog.records]
    assert any("AVA.FULL_TEST_ON_VAL True has no effect with DETECTION" in text for text in warned)
    assert any("DETECTION.ALIGNED False has no effect" in text for text in warned)
    caplog.clear()
    check(f"{BOXES} {STRIDES} AVA.BGR True AVA.TEST_FORCE_FLIP False")
    [warning] = [record.getMessage() for record in caplog.records]
    assert "AVA.BGR True (the command line) has no effect: Set DATA.REVERSE_" in warning


@pytest.mark.parametrize(
    "overrides",
    [
        "",
        "TRAIN.DATASET ssv2 TEST.DATASET ssv2 DATA.ENSEMBLE_METHOD max",
        f"{CHARADES} DATA.ENSEMBLE_METHOD sum",
        f"{CHARADES} TRAIN.ENABLE False TRAIN.DATASET kinetics",  # of what is not run
        "TRAIN.DATASET cats TEST.DATASET cats",  # of one's own
        "SOLVER.OPTIMIZING_METHOD adam",
        "SLOWFAST.ALPHA 2 MULTIGRID.LONG_CYCLE True SOLVER.OPTIMIZING_METHOD adam "
        "SOLVER.BATCH_RATE_RULE sqrt",
        f"{CHARADES} TRAIN.DATASET cats TEST.DATASET cats",
        "TRAIN.CHECKPOINT_TYPE caffe2 TEST.CHECKPOINT_TYPE caffe2",
    ],
)
def test_what_can_run_passes_without_a_word(overrides, caplog):
    check(overrides)
    assert not caplog.records


@pytest.mark.parametrize(
    ("steps", "rates", "message"),
    [
        ("[5,10]", "[1,0.1]", "Set [0, 5.0, 10.0]"),
        ("[0,10,10]", "[]", "must ascend"),
        ("[0,10,21]", "[1,0.1,0.01]", "must ascend and end before SOLVER.MAX_EPOCH 20"),
        ("[0,10,15]", "[1,0.1]", "but SOLVER.STEPS [0.0, 10.0, 15.0] has 3 stage"),
    ],
)
def test_steps_and_rates_must_agree(steps, rates, message):
    policy = "SOLVER.LR_POLICY steps_with_relative_lrs SOLVER.MAX_EPOCH 20"
    assert message in refusal(f"{policy} SOLVER.STEPS {steps} SOLVER.LRS {rates}")


CYCLE = "SLOWFAST.ALPHA 2 MULTIGRID.LONG_CYCLE True"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("SOLVER.STEPS [0,10]", "SOLVER.STEPS [0.0, 10.0] has no effect"),
        ("NUM_GPUS 0 DIST_BACKEND nccl", "DIST_BACKEND nccl has no effect with NUM_GPUS 0"),
        ("TSM.SHIFT_DIV 4", "TSM.SHIFT_DIV 4 has no effect with MODEL.ARCH slowfast"),
        (
            "DATA.CLIP_SAMPLING segments DATA.EXACT_STRIDES True",
            "EXACT_STRIDES True has no effect with DATA.CLIP_SAMPLING segments",
        ),
        (f"{CHARADES} MODEL.LABEL_SMOOTHING 0.1", "no effect with DATA.MULTI_LABEL True"),
        ("SOLVER.CLIP_GRAD_VAL 1 SOLVER.CLIP_GRAD_L2NORM 1", "with SOLVER.CLIP_GRAD_VAL 1.0"),
        (
            "MULTIGRID.SHORT_CYCLE True MULTIGRID.EQUAL_TIME True",
            "with MULTIGRID.LONG_CYCLE False",
        ),
        (
            f"{CYCLE} MULTIGRID.EQUAL_TIME True",
            "EQUAL_TIME True has no effect with MULTIGRID.BATCH",
        ),
        (
            f"{CYCLE} MULTIGRID.WARMUP_IN_EPOCHS False SOLVER.WARMUP_EPOCHS 0",
            "WARMUP_IN_EPOCHS False has no effect without a warm-up",
        ),
        (f"{CYCLE} SOLVER.OPTIMIZING_METHOD adamw", "Set SOLVER.BATCH_RATE_RULE sqrt"),
        ("AUG.ENABLE True AUG.COLOR_JITTER 0.5", "0.5 has no effect with AUG.AA_TYPE rand-m9"),
        ("AUG.COLOR_JITTER 0.5", "AUG.COLOR_JITTER 0.5 has no effect with AUG.ENABLE False"),
        ("MIXUP.PROB 0.5", "MIXUP.PROB 0.5 has no effect with MIXUP.ENABLE False"),
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
    check("TRAIN.DATASET ssv2 DATA.RANDOM_FLIP False TEST.DATASET kinetics")
    assert "Set TEST.DATASET ssv2" in caplog.text
    caplog.clear()
    check("TRAIN.DATASET ssv2 DATA.RANDOM_FLIP False TEST.DATASET kinetics TRAIN.ENABLE False")
    assert not caplog.text


def test_the_global_batch_of_a_training_divides_over_the_processes():
    sizes = "TRAIN.BATCH_SIZE 6 NUM_SHARDS 2"
    for per_machine in (1, 2, 3, 6):
        check(sizes, per_machine)
    assert "global batch of 12 clips" in refusal(sizes, 5)
    assert "10 processes. Set TRAIN.BATCH_SIZE 10," in refusal(sizes, 5)
    check(f"{sizes} TRAIN.ENABLE False", 5)
