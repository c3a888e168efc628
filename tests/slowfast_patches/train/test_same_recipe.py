"""Checks that a recipe scores videos in the same way as the recipe in a checkpoint."""

import pytest
import torch

from slowfast_patches.config import load_recipe
from slowfast_patches.config.key_lists import changes_scores
from slowfast_patches.config.recipe import KEYS
from slowfast_patches.train import checkpoint as checkpoints
from slowfast_patches.train.resume import check_same_scores
from tests.slowfast_patches.train.made_checkpoint import made

OTHER = """
_BASE_: {base}
DATA: {{SAMPLING_RATE: 4, MEAN: [0.5, 0.45, 0.45], RANDOM_FLIP: False, MAX_BAD_FRACTION: 0.5}}
SLOWFAST: {{ALPHA: 4}}
SOLVER: {{BASE_LR: 0.5}}
TEST: {{NUM_ENSEMBLE_VIEWS: 1}}
"""


def test_keys_that_change_the_scores_are_named_unless_the_command_line_sets_them(
    tiny_recipe, tmp_path
):
    """Three of the other recipe's keys change the scores, and four do not."""
    checkpoint = checkpoints.save(tmp_path, made(cfg=load_recipe(tiny_recipe).text))
    check_same_scores(load_recipe(tiny_recipe), checkpoint)
    other = tmp_path / "other.yaml"
    other.write_text(OTHER.format(base=tiny_recipe))
    with pytest.raises(ValueError, match=f"^{checkpoint} .*other values") as caught:
        check_same_scores(load_recipe(other), checkpoint)
    named = "DATA.MEAN [0.45, 0.45, 0.45] there, [0.5, 0.45, 0.45] here; "
    named += "DATA.SAMPLING_RATE 2 there, 4 here; SLOWFAST.ALPHA 2 there, 4 here. Use"
    assert named in str(caught.value)
    chosen = ("DATA.SAMPLING_RATE", 8, "SLOWFAST.ALPHA=4", "DATA.MEAN", [0.4, 0.4, 0.4])
    check_same_scores(load_recipe(other, chosen), checkpoint)
    weights = tmp_path / "weights.pyth"
    torch.save({"model_state": {}, "cfg": "DATA: {}"}, weights)
    check_same_scores(load_recipe(other), weights)


def test_every_key_of_a_model_counts_but_those_that_only_train():
    """List by hand the keys that change the scores of a video."""
    counted = {name for name in KEYS if changes_scores(name)}
    of_data = {name.removeprefix("DATA.") for name in counted if name.startswith("DATA.")}
    assert of_data == {
        *("NUM_FRAMES", "SAMPLING_RATE", "CLIP_SAMPLING", "EXACT_STRIDES", "TARGET_FPS"),
        *("REVERSE_INPUT_CHANNEL", "MULTI_LABEL", "ENSEMBLE_METHOD", "MEAN", "STD"),
        *("TRAIN_CROP_SIZE", "TEST_CROP_SIZE", "TASK", "SHORT_VIDEOS"),
    }
    assert {"MODEL.ARCH", "MODEL.HEAD_ACT", "NONLOCAL.POOL", "RESNET.DEPTH"} <= counted
    assert not {"MODEL.DROPOUT_RATE", "MODEL.ACT_CHECKPOINT", "BN.GROUP_SIZE"} & counted
