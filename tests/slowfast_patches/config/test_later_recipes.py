"""Recipes in the form of PySlowFast's later releases: each loads, passes the checks and plans.

The recipes here imitate theirs. They have 239 epochs of K400 (196 with a cosine, 118 from
ImageNet), 22 of SSv2, 57 of Charades and 20 of AVA. The rates are relative to BASE_LR.
There are often six rates, for any number of steps.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from slowfast_patches.config import check_recipe, load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.plan.recipe_schedule import schedule_of

COMMON = """
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
"""
SIX = "LR_POLICY: steps_with_relative_lrs, LRS: [1, 0.1, 0.01, 0.001, 0.0001, 0.00001]"
STEPWISE = f"SOLVER: {{{SIX}, STEPS: [0, 94, 154, 196], MAX_EPOCH: 239}}"
IMAGENET = f"""
TRAIN: {{CHECKPOINT_FILE_PATH: R50_IN1K.pyth, CHECKPOINT_INFLATE: True}}
SOLVER: {{{SIX}, BASE_LR: 0.01, STEPS: [0, 44, 88, 118], MAX_EPOCH: 118, WARMUP_EPOCHS: 0.0}}
"""
MULTIGRID = "MULTIGRID: {SHORT_CYCLE: True, LONG_CYCLE: True}"
SSV2 = f"""
TRAIN: {{DATASET: ssv2, BATCH_SIZE: 16, CHECKPOINT_FILE_PATH: k400.pyth,
  CHECKPOINT_EPOCH_RESET: True}}
DATA: {{INV_UNIFORM_SAMPLE: True, RANDOM_FLIP: False, PATH_LABEL_SEPARATOR: " "}}
BN: {{NORM_TYPE: sync_batchnorm, NUM_SYNC_DEVICES: 4}}
SOLVER: {{{SIX}, BASE_LR: 0.03, STEPS: [0, 14, 18], MAX_EPOCH: 22, WARMUP_EPOCHS: 0.19,
  WARMUP_START_LR: 0.0001, WEIGHT_DECAY: 1e-6}}
MODEL: {{NUM_CLASSES: 174}}
TEST: {{DATASET: ssv2, BATCH_SIZE: 16, NUM_ENSEMBLE_VIEWS: 1, NUM_SPATIAL_CROPS: 1}}
"""
CHARADES = f"""
TRAIN: {{DATASET: charades, BATCH_SIZE: 16, CHECKPOINT_FILE_PATH: k400.pyth,
  CHECKPOINT_EPOCH_RESET: True}}
DATA: {{INV_UNIFORM_SAMPLE: True, REVERSE_INPUT_CHANNEL: True, TRAIN_JITTER_SCALES: [256, 340],
  MULTI_LABEL: True, ENSEMBLE_METHOD: max}}
BN: {{NORM_TYPE: sync_batchnorm, NUM_SYNC_DEVICES: 4}}
SOLVER: {{{SIX}, BASE_LR: 0.0375, STEPS: [0, 41, 49], MAX_EPOCH: 57, WARMUP_EPOCHS: 4.0,
  WARMUP_START_LR: 0.0001}}
MODEL: {{NUM_CLASSES: 157, LOSS_FUNC: bce_logit, HEAD_ACT: sigmoid}}
TEST: {{DATASET: charades, BATCH_SIZE: 16, NUM_ENSEMBLE_VIEWS: 10, NUM_SPATIAL_CROPS: 3}}
"""


I3D = """
MODEL: {ARCH: i3d, MODEL_NAME: ResNet}
DATA: {NUM_FRAMES: 8, SAMPLING_RATE: 8, INPUT_CHANNEL_NUM: [3]}
RESNET: {NUM_BLOCK_TEMP_KERNEL: [[3], [4], [6], [3]], SPATIAL_STRIDES: [[1], [2], [2], [2]]}
NONLOCAL: {LOCATION: [[[]], [[1, 3]], [[1, 3, 5]], [[]]], INSTANTIATION: softmax}
"""
SLOWFAST = """
MODEL: {ARCH: slowfast, MODEL_NAME: SlowFast}
DATA: {NUM_FRAMES: 32, SAMPLING_RATE: 2, INPUT_CHANNEL_NUM: [3, 3]}
SLOWFAST: {ALPHA: 4, BETA_INV: 8, FUSION_CONV_CHANNEL_RATIO: 2}
RESNET: {SPATIAL_STRIDES: [[1, 1], [2, 2], [2, 2], [2, 2]]}
NONLOCAL: {LOCATION: [[[], []], [[], []], [[], []], [[], []]], GROUP: [[1, 1], [1, 1], [1, 1], [1, 1]]}
"""  # noqa: E501
RECIPES = {
    "I3D_IN1K": (I3D, IMAGENET),
    "SLOW": (I3D, "MODEL: {ARCH: slow}"),
    "SLOWFAST_multigrid": (SLOWFAST, STEPWISE, MULTIGRID),
    "SSv2_multigrid": (SLOWFAST, SSV2, MULTIGRID),
    "Charades_multigrid": (SLOWFAST, CHARADES, MULTIGRID),
}
VIDEOS = 240_000


def load(name: str, folder: Path, *overrides: object) -> Recipe:
    return load_parts(RECIPES[name], folder, *overrides)


def load_parts(parts: Sequence[str], folder: Path, *overrides: object) -> Recipe:
    names = []
    for number, text in enumerate((COMMON, *parts)):
        names.append(f"{number}.yaml")
        (folder / names[-1]).write_text(text)
    (folder / "recipe.yaml").write_text(f"_BASE_: {names}")
    return load_recipe(folder / "recipe.yaml", overrides)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_of_the_later_releases_loads_and_plans(name, tmp_path):
    recipe = load(name, tmp_path)
    check_recipe(recipe)
    assert schedule_of(recipe, VIDEOS).iterations > 5000


def test_a_last_step_at_the_end_makes_no_stage(tmp_path):
    """118 epochs with drops at 44 and 88: two stages with long cycles, then fine-tuning."""
    run = schedule_of(load("I3D_IN1K", tmp_path), VIDEOS)
    stops = [phase.baseline_epochs[1] for phase in run.phases]
    assert (stops, run.baseline_iterations) == ([44, 88, 118], 118 * VIDEOS // 64)
    rates = [run.at(phase.stop - 1).lr for phase in run.phases]
    assert rates == pytest.approx([0.01, 0.001, 0.0001])
    both = ("MULTIGRID.LONG_CYCLE", True, "MULTIGRID.SHORT_CYCLE", True)
    cycled = schedule_of(load("I3D_IN1K", tmp_path, *both), VIDEOS)
    assert [phase.stage for phase in cycled.phases] == [0] * 4 + [1] * 4 + [2] * 2
