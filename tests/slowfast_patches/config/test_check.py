"""What cannot run is refused with a way out; what does nothing is said."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slowfast_patches.config import check_recipe, load_recipe
from slowfast_patches.config.check import check_frames

CHARADES = (
    "TRAIN.DATASET charades TEST.DATASET charades MODEL.NUM_CLASSES 157 DATA.MULTI_LABEL True "
    "MODEL.LOSS_FUNC bce_logit MODEL.HEAD_ACT sigmoid DATA.ENSEMBLE_METHOD max"
)
"""What the later releases' Charades recipes say of labels."""


def check(overrides: str = "", processes: int = 1) -> None:
    check_recipe(load_recipe(None, overrides.split()), processes)


def refusal(overrides: str, processes: int = 1) -> str:
    with pytest.raises(ValueError) as caught:
        check(overrides, processes)
    return str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        # One key: each kind of check in config/recipe.py.
        ("TEST.NUM_SPATIAL_CROPS 2", "must be 1 or 3, not 2"),
        ("MODEL.ARCH x3d", "MODEL.ARCH must be slowfast, slowonly"),
        ("TRAIN.BATCH_SIZE 0", "TRAIN.BATCH_SIZE must be 1 or more, not 0 (the command line)"),
        ("RNG_SEED -1", "RNG_SEED must be 0 or more, not -1 (the command line)"),
        ("DATA.NUM_FRAMES 1000000000", "DATA.NUM_FRAMES must be 1 to 65,536, not 1000000000"),
        ("SOLVER.MAX_EPOCH 1e9", "SOLVER.MAX_EPOCH must be above 0, and 100,000 at most"),
        ("DIST_JOIN_SECONDS 1e300", "DIST_JOIN_SECONDS must be above 0, and 1,000,000,000 at most"),
        ("SOLVER.LENGTH 0", "SOLVER.LENGTH must be above 0"),
        ("NUM_GPUS 4294967295", "NUM_GPUS must be 0 to 1,024"),
        ("RESNET.DEPTH 18", "RESNET.DEPTH must be 50 or 101"),
        ("DATA_LOADER.NUM_WORKERS -1", "must be 0 or more, or auto, not -1"),
        ("MULTIGRID.EPOCH_FACTOR 0", "MULTIGRID.EPOCH_FACTOR must be above 0"),
        ("MODEL.EMA_DECAY 1.0", "MODEL.EMA_DECAY must be in [0, 1)"),
        ("DATA.MAX_BAD_FRACTION 5", "DATA.MAX_BAD_FRACTION must be in [0, 1]"),
        ("DATA.TRAIN_CROP_SIZE 16", "32 pixels or more"),
        ("TSM.SHIFT_DIV 1", "2 or more, or 0"),
        ("TEST.SAVE_RESULTS_PATH a.txt", "ends in .csv"),
        ("MULTIGRID.LONG_CYCLE_FACTORS [[0.5,0.5]]", "the last [1, 1], not [[0.5, 0.5]]"),
        ("MULTIGRID.LONG_CYCLE_FACTORS [[2,1],[1,1]]", "factors in (0, 1]"),
        ("MULTIGRID.SHORT_CYCLE_FACTORS [0.5,0]", "factors in (0, 1]"),
        ("DETECTION.ENABLE True", "MODEL.LOSS_FUNC bce, or DETECTION.ENABLE False"),
        ("TRAIN.CHECKPOINT_TYPE onnx", "must be pytorch or caffe2, not 'onnx'"),
        # Several.
        ("SOLVER.MAX_EPOCH 30 SOLVER.WARMUP_EPOCHS 34", "shorten the warm-up"),
        ("DATA.TEST_CROP_SIZE 192", "set it to 224 or more"),
        ("DATA.TRAIN_JITTER_SCALES [200,320]", "no shorter than DATA.TRAIN_CROP_SIZE 224"),
        (
            "DATA.INPUT_CHANNEL_NUM [3]",
            "DATA.INPUT_CHANNEL_NUM [3] does not fit MODEL.ARCH slowfast",
        ),
        ("RESNET.SPATIAL_STRIDES [[1],[2],[2],[2]]", "STRIDES [[1], [2], [2], [2]] does not fit"),
        ("DATA.NUM_FRAMES 4", "SLOWFAST.ALPHA 1, 2 or 4 would work"),
        ("SLOWFAST.ALPHA 8 MULTIGRID.LONG_CYCLE True", "clips of 2, 4 and 8 frames"),
        ("TRAIN.COMPILE True MODEL.ACT_CHECKPOINT True", "set one of them to False"),
        ("TRAIN.COMPILE fast", "TRAIN.COMPILE must be False, True, default, reduce-overhead or"),
        ("MIXUP.ENABLE True MIXUP.ALPHA 0 MIXUP.CUTMIX_ALPHA 0", "set one of them above 0, or"),
        ("MIXUP.ENABLE True TRAIN.BATCH_SIZE 1", "leaves one to mix"),
        # Labels.
        ("MODEL.LOSS_FUNC bce_logit", "LOSS_FUNC cross_entropy, or DATA.MULTI_LABEL True"),
        ("MODEL.HEAD_ACT sigmoid", "set MODEL.HEAD_ACT softmax, or DATA.MULTI_LABEL True"),
        (f"{CHARADES} MODEL.HEAD_ACT softmax", "MODEL.HEAD_ACT sigmoid, or DATA.MULTI_LABEL Fal"),
    ],
)
def test_what_cannot_run_is_refused_with_a_way_out(overrides, message):
    assert message in refusal(overrides)


STRIDES = "RESNET.SPATIAL_STRIDES [[1,1],[2,2],[2,2],[1,1]]"
BOXES = "DETECTION.ENABLE True MODEL.LOSS_FUNC bce MODEL.HEAD_ACT sigmoid"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("", "DETECTION.SPATIAL_SCALE_FACTOR 16 does not fit RESNET.SPATIAL_STRIDES [[1, 1],"),
        (f"{STRIDES} TEST.NUM_ENSEMBLE_VIEWS 10", "a key frame has one clip along the video; set"),
        (f"{STRIDES} MIXUP.ENABLE True", "MIXUP.ENABLE True does not fit DETECTION.ENABLE True"),
        (f"{STRIDES} TRAIN.COMPILE True", "clips have different numbers of boxes; set it to False"),
        (f"{STRIDES} DATA.ENSEMBLE_METHOD max", "set it to sum"),
        (f"{STRIDES} DATA.CLIP_SAMPLING segments", "set it to auto"),
        ("MODEL.ARCH hf", "no map of features to take boxes from"),
        (f"{STRIDES} MODEL.HEAD_ACT softmax", "set MODEL.HEAD_ACT sigmoid, or DETECTION.ENABLE"),
    ],
)
def test_what_boxes_cannot_have_is_refused(overrides, message):
    check(f"DETECTION.ENABLE True MODEL.LOSS_FUNC bce {STRIDES}")
    assert message in refusal(f"{BOXES} {overrides}")


def test_keys_of_boxes_without_detection_are_said_to_have_no_effect(caplog):
    check("AVA.FULL_TEST_ON_VAL True DETECTION.ALIGNED False")
    warned = [record.getMessage() for record in caplog.records]
    assert any("AVA.FULL_TEST_ON_VAL True has no effect with DETECTION" in text for text in warned)
    assert any("DETECTION.ALIGNED False has no effect" in text for text in warned)
    caplog.clear()
    check(f"{BOXES} {STRIDES} AVA.BGR True AVA.TEST_FORCE_FLIP False")
    [warning] = [record.getMessage() for record in caplog.records]
    assert "AVA.BGR True (the command line) has no effect: Write DATA.REVERSE_" in warning


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
        ("[5,10]", "[1,0.1]", "write [0, 5.0, 10.0]"),
        ("[0,10,10]", "[]", "must ascend"),
        ("[0,10,21]", "[1,0.1,0.01]", "must ascend and end before SOLVER.MAX_EPOCH 20"),
        ("[0,10,15]", "[1,0.1]", "2 rates for the 3 stages"),
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
            f"{CYCLE} MULTIGRID.WARMUP_IN_EPOCHS True SOLVER.WARMUP_EPOCHS 0",
            "WARMUP_IN_EPOCHS True has no effect without a warm-up",
        ),
        (f"{CYCLE} SOLVER.OPTIMIZING_METHOD adamw", "BATCH_RATE_RULE sqrt is the one of adaptive"),
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


def test_the_global_batch_divides_over_the_processes():
    sizes = "TRAIN.BATCH_SIZE 6 NUM_SHARDS 2"
    for processes in (1, 2, 3, 4, 6, 12):
        check(sizes, processes)
    assert "global batch of 12 clips" in refusal(sizes, 5)
    assert "set TRAIN.BATCH_SIZE 10," in refusal(sizes, 5)


def test_frames_that_do_not_fit_say_what_would():
    quarter_half_one = (0.25, 0.5, 1.0)
    with pytest.raises(ValueError, match=r"4, 8 and 16 .* SLOWFAST\.ALPHA 1, 2 or 4 would work"):
        check_frames("slowfast", 16, 8, quarter_half_one)
    with pytest.raises(ValueError, match="i3d needs 2 at least"):
        check_frames("i3d", 4, 8, quarter_half_one)
    for arch in ("slowonly", "c2d_nopool", "i3d_nopool"):
        check_frames(arch, 4, 8, quarter_half_one)
    for frames in (16, 32, 64):  # the paper's clips
        check_frames("slowfast", frames, 4, quarter_half_one)


@settings(max_examples=30, deadline=None)
@given(frames=st.integers(1, 80), alpha=st.integers(1, 16))
def test_frames_that_pass_feed_both_sides_of_the_fusion(frames, alpha):
    """The slow pathway takes every alpha-th frame; the fusing convolution strides by alpha."""
    try:
        check_frames("slowfast", frames, alpha)
    except ValueError:
        assert len(range(0, frames, alpha)) != frames // alpha
    else:
        assert len(range(0, frames, alpha)) == frames // alpha >= 1
