"""Recipes in the form of PySlowFast's later releases: each loads, passes the checks and plans.

The recipes here imitate theirs. They have 239 epochs of K400 (196 with a cosine, 118 from
ImageNet), 22 of SSv2, 57 of Charades and 20 of AVA. The rates are relative to BASE_LR.
There are often six rates, for any number of steps.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from multigrid import Schedule
from slowfast_patches.config import check_recipe, load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.plan.plan import make_plan
from slowfast_patches.plan.recipe_schedule import schedule_of

Block = dict[str, Any]


def block(text: str) -> Block:
    return yaml.safe_load(text)


COMMON = block("""
TRAIN: {ENABLE: True, DATASET: kinetics, BATCH_SIZE: 64, EVAL_PERIOD: 10, CHECKPOINT_PERIOD: 1}
DATA: {TRAIN_JITTER_SCALES: [256, 320], TRAIN_CROP_SIZE: 224, TEST_CROP_SIZE: 256}
RESNET: {ZERO_INIT_FINAL_BN: True, WIDTH_PER_GROUP: 64, NUM_GROUPS: 1, DEPTH: 50,
  TRANS_FUNC: bottleneck_transform, STRIDE_1X1: False}
BN: {USE_PRECISE_STATS: True, NUM_BATCHES_PRECISE: 200}
SOLVER: {BASE_LR: 0.1, LR_POLICY: cosine, MAX_EPOCH: 196, MOMENTUM: 0.9, WEIGHT_DECAY: 1e-4,
  WARMUP_EPOCHS: 34.0, WARMUP_START_LR: 0.01, OPTIMIZING_METHOD: sgd}
MODEL: {NUM_CLASSES: 400, LOSS_FUNC: cross_entropy, DROPOUT_RATE: 0.5}
TEST: {ENABLE: True, DATASET: kinetics, BATCH_SIZE: 64}
DATA_LOADER: {NUM_WORKERS: 8, PIN_MEMORY: True}
TENSORBOARD: {ENABLE: True, MODEL_VIS: {ENABLE: False}}
DEMO: {ENABLE: False}
LOG_MODEL_INFO: False
NUM_GPUS: 8
NUM_SHARDS: 1
OUTPUT_DIR: .
""")
SIX = "LR_POLICY: steps_with_relative_lrs, LRS: [1, 0.1, 0.01, 0.001, 0.0001, 0.00001]"
STEPWISE = block(f"SOLVER: {{{SIX}, STEPS: [0, 94, 154, 196], MAX_EPOCH: 239}}")
IMAGENET = block(f"""
TRAIN: {{CHECKPOINT_FILE_PATH: R50_IN1K.pyth, CHECKPOINT_INFLATE: True}}
SOLVER: {{{SIX}, BASE_LR: 0.01, STEPS: [0, 44, 88, 118], MAX_EPOCH: 118, WARMUP_EPOCHS: 0.0}}
""")
CAFFE2 = block(f"""
TRAIN: {{ENABLE: False, CHECKPOINT_TYPE: caffe2}}
SOLVER: {{{SIX}, STEPS: [0, 44, 88, 118], MAX_EPOCH: 118}}
TEST: {{CHECKPOINT_FILE_PATH: model.pkl, CHECKPOINT_TYPE: caffe2, NUM_ENSEMBLE_VIEWS: 10,
  NUM_SPATIAL_CROPS: 3}}
""")
MULTIGRID = block("MULTIGRID: {SHORT_CYCLE: True, LONG_CYCLE: True}")
SSV2 = block(f"""
TRAIN: {{DATASET: ssv2, BATCH_SIZE: 16, CHECKPOINT_FILE_PATH: k400.pyth,
  CHECKPOINT_EPOCH_RESET: True}}
DATA: {{INV_UNIFORM_SAMPLE: True, RANDOM_FLIP: False, PATH_LABEL_SEPARATOR: " "}}
BN: {{NORM_TYPE: sync_batchnorm, NUM_SYNC_DEVICES: 4}}
SOLVER: {{{SIX}, BASE_LR: 0.03, STEPS: [0, 14, 18], MAX_EPOCH: 22, WARMUP_EPOCHS: 0.19,
  WARMUP_START_LR: 0.0001, WEIGHT_DECAY: 1e-6}}
MODEL: {{NUM_CLASSES: 174}}
TEST: {{DATASET: ssv2, BATCH_SIZE: 16, NUM_ENSEMBLE_VIEWS: 1, NUM_SPATIAL_CROPS: 1}}
""")
CHARADES = block(f"""
TRAIN: {{DATASET: charades, BATCH_SIZE: 16, CHECKPOINT_FILE_PATH: k400.pyth,
  CHECKPOINT_EPOCH_RESET: True}}
DATA: {{INV_UNIFORM_SAMPLE: True, REVERSE_INPUT_CHANNEL: True, TRAIN_JITTER_SCALES: [256, 340],
  MULTI_LABEL: True, ENSEMBLE_METHOD: max}}
BN: {{NORM_TYPE: sync_batchnorm, NUM_SYNC_DEVICES: 4}}
SOLVER: {{{SIX}, BASE_LR: 0.0375, STEPS: [0, 41, 49], MAX_EPOCH: 57, WARMUP_EPOCHS: 4.0,
  WARMUP_START_LR: 0.0001}}
MODEL: {{NUM_CLASSES: 157, LOSS_FUNC: bce_logit, HEAD_ACT: sigmoid}}
TEST: {{DATASET: charades, BATCH_SIZE: 16, NUM_ENSEMBLE_VIEWS: 10, NUM_SPATIAL_CROPS: 3}}
""")
AVA = block("""
TRAIN: {DATASET: ava, BATCH_SIZE: 64, EVAL_PERIOD: 5, CHECKPOINT_FILE_PATH: k400.pyth}
DATA: {TRAIN_CROP_SIZE: 224, TEST_CROP_SIZE: 224}
DETECTION: {ENABLE: True, ALIGNED: True, SPATIAL_SCALE_FACTOR: 16, ROI_XFORM_RESOLUTION: 7}
AVA: {FRAME_DIR: /ava/frames, FRAME_LIST_DIR: /ava/frame_lists, ANNOTATION_DIR: /ava/annotations,
  DETECTION_SCORE_THRESH: 0.8, FULL_TEST_ON_VAL: True, BGR: False, IMG_PROC_BACKEND: cv2,
  TRAIN_PREDICT_BOX_LISTS: [ava_train_v2.2.csv, ava_detection_train_boxes_and_labels.csv],
  TEST_PREDICT_BOX_LISTS: [ava_detection_val_boxes_and_labels.csv], TEST_FORCE_FLIP: False,
  TRAIN_USE_COLOR_AUGMENTATION: False, TRAIN_PCA_JITTER_ONLY: True}
BN: {USE_PRECISE_STATS: False}
SOLVER: {BASE_LR: 0.1, LR_POLICY: steps_with_relative_lrs, STEPS: [0, 10, 15, 20],
  LRS: [1, 0.1, 0.01, 0.001], MAX_EPOCH: 20, WEIGHT_DECAY: 1e-7, WARMUP_EPOCHS: 5.0,
  WARMUP_START_LR: 0.000125}
MODEL: {NUM_CLASSES: 80, LOSS_FUNC: bce, HEAD_ACT: sigmoid}
TEST: {DATASET: ava, BATCH_SIZE: 8}
""")


def model(arch: str, frames: int, stride: int, alpha: int = 4, pathways: int = 1) -> Block:
    """Return the keys of a model, with an entry for each pathway in each stage."""
    return {
        "MODEL": {"ARCH": arch, "MODEL_NAME": "SlowFast" if pathways == 2 else "ResNet"},
        "DATA": {
            "NUM_FRAMES": frames,
            "SAMPLING_RATE": stride,
            "INPUT_CHANNEL_NUM": [3] * pathways,
        },
        "SLOWFAST": {"ALPHA": alpha, "BETA_INV": 8, "FUSION_CONV_CHANNEL_RATIO": 2},
        "RESNET": {
            "NUM_BLOCK_TEMP_KERNEL": [
                [3] * pathways,
                [4] * pathways,
                [6] * pathways,
                [3] * pathways,
            ],
            "SPATIAL_STRIDES": [[1] * pathways, *[[2] * pathways] * 3],
            "SPATIAL_DILATIONS": [[1] * pathways] * 4,
        },
        "NONLOCAL": {
            "LOCATION": [[stage] + [[]] * (pathways - 1) for stage in ([], [1, 3], [1, 3, 5], [])],
            "GROUP": [[1] * pathways] * 4,
            "POOL": [[[1, 2, 2], [1, 2, 2]]] * 4,
            "INSTANTIATION": "softmax",
        },
    }


I3D = model("i3d", 8, 8)
SLOWFAST = model("slowfast", 32, 2, pathways=2)
LONG = model("slowfast", 64, 2, pathways=2)
RECIPES: dict[str, Sequence[Block]] = {
    "Kinetics/C2D_8x8": (model("c2d", 8, 8),),
    "Kinetics/C2D_NOPOOL_8x8": (model("c2d_nopool", 8, 8),),
    "Kinetics/I3D_8x8": (I3D,),
    "Kinetics/I3D_8x8_IN1K": (I3D, IMAGENET),
    "Kinetics/SLOW_8x8": (model("slow", 8, 8),),
    "Kinetics/SLOWFAST_4x16": (model("slowfast", 32, 2, alpha=8, pathways=2),),
    "Kinetics/c2/SLOWFAST_8x8": (SLOWFAST, CAFFE2),
    "Kinetics/SLOWFAST_8x8_stepwise": (SLOWFAST, STEPWISE),
    "Kinetics/SLOWFAST_8x8_multigrid": (SLOWFAST, STEPWISE, MULTIGRID),
    "SSv2/SLOWFAST_16x8_multigrid": (LONG, SSV2, MULTIGRID),
    "Charades/SLOWFAST_16x8_multigrid": (LONG, CHARADES, MULTIGRID),
}
for name, of_ava in (("SLOWFAST_32x2", SLOWFAST), ("SLOW_8x8", model("slow", 8, 8))):
    pathways = len(of_ava["DATA"]["INPUT_CHANNEL_NUM"])
    of_last = {"SPATIAL_STRIDES": [[1], [2], [2], [1]], "SPATIAL_DILATIONS": [[1], [1], [1], [2]]}
    last = {key: [stage * pathways for stage in stages] for key, stages in of_last.items()}
    RECIPES[f"AVA/{name}_R50_SHORT"] = (of_ava, AVA, {"RESNET": last})
    RECIPES[f"AVA/{name}_R50_SHORT_multigrid"] = (of_ava, AVA, {"RESNET": last}, MULTIGRID)
VIDEOS = 240_000


def write(name: str, folder: Path) -> Path:
    merged: Block = {}
    for keys in (COMMON, *RECIPES[name]):
        for key, value in keys.items():
            merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(merged))
    return path


def load(name: str, folder: Path, *overrides: object) -> Recipe:
    return load_recipe(write(name, folder), overrides)


def schedule(name: str, folder: Path, *overrides: object) -> Schedule:
    return schedule_of(load(name, folder, *overrides), VIDEOS)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_of_the_later_releases_loads_and_plans(name, tmp_path, caplog):
    recipe = load(name, tmp_path)
    warned = [record.getMessage() for record in caplog.records]
    check_recipe(recipe)
    plan = make_plan(schedule_of(recipe, VIDEOS), lambda frames, crop: 1.0)
    assert plan.cost.iterations > 5000
    surplus = recipe.solver.lr_policy != "cosine"
    assert any("SOLVER.LRS" in text for text in warned) == surplus
    assert any("SOLVER.STEPS, [118.0], has" in text for text in warned) == (
        recipe.solver.max_epoch == 118
    )
    assert len(recipe.solver.lrs) == len(recipe.solver.steps)


def test_rates_and_steps_without_effect_are_dropped_by_name_once(tmp_path, caplog):
    name = "Kinetics/SLOWFAST_8x8_stepwise"
    recipe = load(name, tmp_path)
    [warning] = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "SOLVER.LRS, [0.0001, 1e-05], has no effect and is dropped" in warning
    stages = (recipe.solver.steps, recipe.solver.lrs)
    assert stages == ((0, 94, 154, 196), (1, 0.1, 0.01, 0.001))
    caplog.clear()
    (tmp_path / "config.yaml").write_text(recipe.text)
    assert load_recipe(tmp_path / "config.yaml") == recipe
    assert not caplog.records
    shorter = load(name, tmp_path, "SOLVER.MAX_EPOCH", 196)
    assert (shorter.solver.steps, shorter.solver.lrs) == ((0, 94, 154), (1, 0.1, 0.01))
    assert "[196.0], has no effect and is dropped" in caplog.text
    with pytest.raises(ValueError, match=r"must ascend and end before SOLVER\.MAX_EPOCH 154"):
        check_recipe(load(name, tmp_path, "SOLVER.MAX_EPOCH", 154))


def test_a_last_step_at_the_end_makes_no_stage(tmp_path):
    """118 epochs with drops at 44 and 88: two stages with long cycles, then fine-tuning."""
    run = schedule("Kinetics/I3D_8x8_IN1K", tmp_path)
    stops = [phase.baseline_epochs[1] for phase in run.phases]
    assert (stops, run.baseline_iterations) == ([44, 88, 118], 118 * VIDEOS // 64)
    rates = [run.at(phase.stop - 1).lr for phase in run.phases]
    assert rates == pytest.approx([0.01, 0.001, 0.0001])
    both = ("MULTIGRID.LONG_CYCLE", True, "MULTIGRID.SHORT_CYCLE", True)
    cycled = schedule("Kinetics/I3D_8x8_IN1K", tmp_path, *both)
    assert [phase.stage for phase in cycled.phases] == [0] * 4 + [1] * 4 + [2] * 2
    longer = load("Kinetics/I3D_8x8_IN1K", tmp_path, "SOLVER.MAX_EPOCH", 130)
    assert longer.solver.steps == (0, 44, 88, 118)


def test_the_warm_up_keeps_its_epochs(tmp_path):
    """The warm-up has 34 epochs, all at the first shape, which scales the rates by 8."""
    run = schedule("Kinetics/SLOWFAST_8x8_multigrid", tmp_path)
    rates = [run.at(i).lr for i in range(run.phases[0].stop)]
    assert (rates[0], max(rates)) == pytest.approx((0.08, 0.8))
    end = rates.index(max(rates))
    assert run.at(end).epoch == pytest.approx(34, abs=0.01)
