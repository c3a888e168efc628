"""Checks that a recipe scores videos in the same way as the recipe in a checkpoint."""

from pathlib import Path

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


@pytest.fixture
def other(tiny_recipe: Path, tmp_path: Path) -> Path:
    """A recipe that differs in three keys that change the scores, and in four that do not."""
    path = tmp_path / "other.yaml"
    path.write_text(OTHER.format(base=tiny_recipe))
    return path


@pytest.fixture
def checkpoint(tiny_recipe: Path, tmp_path: Path) -> Path:
    return checkpoints.save(tmp_path, made(cfg=load_recipe(tiny_recipe).text))


def differing(recipe: Path, checkpoint: Path, *overrides: object) -> list[str]:
    """The parts of the error that name a key."""
    with pytest.raises(ValueError, match=f"^{checkpoint} .*other values") as caught:
        check_same_scores(load_recipe(recipe, overrides), checkpoint)
    return str(caught.value).split(": ", 1)[1].split(". Use")[0].split("; ")


def test_keys_that_change_the_scores_are_named_unless_the_command_line_sets_them(
    other: Path, tiny_recipe: Path, checkpoint: Path
):
    check_same_scores(load_recipe(tiny_recipe), checkpoint)
    assert differing(other, checkpoint) == [
        "DATA.MEAN [0.45, 0.45, 0.45] there, [0.5, 0.45, 0.45] here",
        "DATA.SAMPLING_RATE 2 there, 4 here",
        "SLOWFAST.ALPHA 2 there, 4 here",
    ]
    chosen = ("DATA.SAMPLING_RATE", 8, "SLOWFAST.ALPHA=4", "HF.CONFIG.hidden_size", 192)
    assert [text.split()[0] for text in differing(other, checkpoint, *chosen)] == ["DATA.MEAN"]


def test_weights_without_a_recipe_are_not_compared(other: Path, tmp_path: Path):
    torch.save({"model_state": {}, "cfg": "DATA: {}"}, tmp_path / "weights.pyth")
    (tmp_path / "weights.pkl").write_bytes(b"no file of torch")
    for name in ("weights.pyth", "weights.pkl"):
        check_same_scores(load_recipe(other), tmp_path / name)


def test_every_key_of_a_model_counts_but_those_that_only_train():
    """List by hand the keys that change the scores of a video."""
    counted = {name for name in KEYS if changes_scores(name)}
    of_data = {name.removeprefix("DATA.") for name in counted if name.startswith("DATA.")}
    assert of_data == {
        *("NUM_FRAMES", "SAMPLING_RATE", "CLIP_SAMPLING", "EXACT_STRIDES", "TARGET_FPS"),
        *("REVERSE_INPUT_CHANNEL", "MULTI_LABEL", "ENSEMBLE_METHOD", "MEAN", "STD"),
        *("CROP_SIZE", "TEST_CROP_SIZE", "INPUT_CHANNEL_NUM", "TASK"),
    }
    assert {"MODEL.ARCH", "MODEL.HEAD_ACT", "HF.CONFIG", "NONLOCAL.POOL", "RESNET.DEPTH"} <= counted
    assert not {"MODEL.DROPOUT_RATE", "MODEL.ACT_CHECKPOINT", "BN.GROUP_SIZE"} & counted
