"""Keys of AVA: recipes of later releases, keys without effect, and what changes a result."""

from slowfast_patches.config import check_recipe, load_recipe
from slowfast_patches.config.recipe import KEYS
from slowfast_patches.plan.facts import list_fact
from slowfast_patches.plan.recipe_schedule import schedule_of
from slowfast_patches.plan.run_identity import RESULT, differences_between, run_identity
from tests.slowfast_patches.config.test_later_recipes import MULTIGRID, SLOWFAST, load_parts
from tests.slowfast_patches.plan.test_identity import named_changes, recipe

__all__ = ["recipe"]  # a fixture

AVA = """
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
"""
LAST = "RESNET: {SPATIAL_STRIDES: [[1, 1], [2, 2], [2, 2], [1, 1]]}"
FOLDERS = {"AVA.FRAME_DIR", "AVA.FRAME_LIST_DIR", "AVA.ANNOTATION_DIR"}


def test_a_recipe_of_the_later_releases_loads_and_plans(tmp_path):
    recipe = load_parts((SLOWFAST, AVA, LAST, MULTIGRID), tmp_path)
    check_recipe(recipe)
    assert schedule_of(recipe, 240_000).iterations > 5000


def test_a_key_of_detection_has_no_effect_without_it(caplog):
    check_recipe(load_recipe(None, ["NUM_GPUS", 0, "DETECTION.ALIGNED", False]))
    assert "DETECTION.ALIGNED False has no effect" in caplog.text


def test_each_key_but_the_folders_is_named_where_it_differs(recipe):
    names = [name for name in KEYS if name.startswith(("AVA.", "DETECTION."))]
    assert named_changes(recipe, names) == set(names) - FOLDERS


def test_a_key_without_effect_is_no_difference(recipe):
    changed = recipe.replaced({"AVA.TRAIN_LISTS": ("x.csv",)})
    identities = [run_identity(each, clips=False) for each in (recipe, changed)]
    assert differences_between(*identities, RESULT) == {}


def test_files_that_only_the_evaluation_reads_count(recipe, tmp_path):
    """AVA's ground truth, class names and excluded key frames belong to the list of val."""
    own = recipe.replaced({"TRAIN.DATASET": "ava", "TEST.DATASET": "ava"})
    own = own.replaced({"AVA.ANNOTATION_DIR": str(tmp_path), "AVA.EXCLUSION_FILE": "out.csv"})
    before = list_fact(own, [], "val")
    assert list_fact(own, [], "train") == list_fact(own, [], "train")
    (tmp_path / "out.csv").write_text("a,902\n")
    assert list_fact(own, [], "val") != before
