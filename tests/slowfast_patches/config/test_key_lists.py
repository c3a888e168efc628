"""Lists of keys with a property, by hand for the core, and by their flags for all keys."""

from slowfast_patches.config import key_lists
from slowfast_patches.config.recipe import KEYS
from slowfast_patches.seams import SECTIONS

CORE = [name for name in KEYS if name.partition(".")[0] not in SECTIONS]


def test_keys_of_the_test_and_of_the_validations():
    test = [name for name in CORE if key_lists.describes_test(name)]
    assert test == [
        *("TEST.ENABLE", "TEST.DATASET", "TEST.NUM_ENSEMBLE_VIEWS", "TEST.NUM_SPATIAL_CROPS"),
        "TEST.CHECKPOINT_FILE_PATH",
    ]
    found = [name for name in KEYS if key_lists.describes_evaluations(name)]
    assert found == ["TRAIN.EVAL_PERIOD", "TRAIN.KEEP_BEST"]


def test_keys_that_change_only_the_times_of_a_run():
    """Neither do they change its result, as TRAIN.TF32 does, nor leave its times as they are."""
    assert {name for name in CORE if key_lists.changes_times(name)} == {
        *("MODEL.CHANNELS_LAST", "MODEL.ACT_CHECKPOINT", "SOLVER.ACCUMULATION_STEPS"),
        *("SOLVER.FUSED", "TRAIN.CUDNN_BENCHMARK", "TRAIN.DETERMINISTIC", "TRAIN.COMPILE"),
        *("NUM_GPUS", "TEST.BATCH_SIZE"),
    }


def test_switches_make_iterations_faster_and_count_as_keys_of_the_speed():
    switches = set(key_lists.speed_switches())
    assert switches == {
        *("MODEL.CHANNELS_LAST", "SOLVER.FUSED", "TRAIN.MIXED_PRECISION", "TRAIN.TF32"),
        *("TRAIN.CUDNN_BENCHMARK", "TRAIN.COMPILE"),
    }
    speed = set(key_lists.speed_keys())
    assert switches < speed
    assert {"MODEL.ARCH", "RESNET.DEPTH", "MODEL.EMA_DECAY", "TRAIN.FREEZE"} <= speed
    assert not {"SOLVER.BASE_LR", "NUM_GPUS", "DATA.NUM_FRAMES", "OUTPUT_DIR"} & speed


def test_keys_that_a_resumed_run_may_change_do_not_change_the_training():
    free = {name for name in KEYS if key_lists.may_differ(name)}
    assert {"OUTPUT_DIR", "NUM_GPUS", "TRAIN.COMPILE", "DATA.MAX_BAD_FRACTION"} <= free
    assert {name for name in KEYS if key_lists.changes_training(name)} == set(KEYS) - free
    assert {"SOLVER.BASE_LR", "RNG_SEED", "DATA.NUM_FRAMES", "TRAIN.TF32"} <= set(KEYS) - free


def test_paths_on_the_machine_are_private():
    assert [name for name in key_lists.private_keys() if name in CORE] == [
        *("MULTIGRID.BATCH_BY", "DATA.PATH_TO_DATA_DIR", "DATA.PATH_PREFIX"),
        *("TRAIN.CHECKPOINT_FILE_PATH", "TEST.CHECKPOINT_FILE_PATH", "OUTPUT_DIR"),
    ]
