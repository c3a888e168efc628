"""Checks that a recipe scores videos in the same way as the recipe in a checkpoint."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from slowfast_patches.config import load_recipe
from slowfast_patches.config.key_lists import changes_scores
from slowfast_patches.config.recipe import KEYS
from slowfast_patches.train import checkpoint as checkpoints
from slowfast_patches.train.resume import check_same_scores
from tests.conftest import run_net_command
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
    """The lines of the error that name a key."""
    with pytest.raises(ValueError, match=f"^{checkpoint} .*other values") as caught:
        check_same_scores(load_recipe(recipe, overrides), checkpoint)
    return [line.strip() for line in str(caught.value).splitlines() if line.startswith("  ")]


def test_keys_that_change_the_scores_are_named_unless_the_command_line_sets_them(
    other: Path, tiny_recipe: Path, checkpoint: Path
):
    check_same_scores(load_recipe(tiny_recipe), checkpoint)
    assert differing(other, checkpoint) == [
        "DATA.MEAN: [0.45, 0.45, 0.45] in the checkpoint, [0.5, 0.45, 0.45] now",
        "DATA.SAMPLING_RATE: 2 in the checkpoint, 4 now",
        "SLOWFAST.ALPHA: 2 in the checkpoint, 4 now",
    ]
    chosen = ("DATA.SAMPLING_RATE", 8, "SLOWFAST.ALPHA=4", "HF.CONFIG.hidden_size", 192)
    assert [line.split(":")[0] for line in differing(other, checkpoint, *chosen)] == ["DATA.MEAN"]


def test_weights_without_a_recipe_are_not_compared(other: Path, tmp_path: Path):
    for content in ({"a": torch.zeros(1)}, {"model_state": {}, "cfg": "DATA: {}"}):
        torch.save(content, tmp_path / "weights.pyth")
        check_same_scores(load_recipe(other), tmp_path / "weights.pyth")
    (tmp_path / "weights.pkl").write_bytes(b"no file of torch")
    check_same_scores(load_recipe(other), tmp_path / "weights.pkl")


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


@pytest.mark.parametrize("program", ["tools/run_net.py", "tools/predict.py"])
def test_both_programs_refuse_before_they_build_the_model(
    program: str,
    other: Path,
    checkpoint: Path,
    tmp_path: Path,
    tiny_recipe: Path,
    load_program: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    module = load_program(program)
    if program == "tools/predict.py":
        keys = ["--checkpoint", str(checkpoint), "--cfg", str(other), "some.mp4"]
        status = module.main(keys)
    else:
        command = run_net_command(other, tmp_path, "TRAIN.ENABLE", False)
        data = ["DATA.PATH_TO_DATA_DIR", str(tiny_recipe.parent)]
        monkeypatch.setattr(sys, "argv", [*command[1:], *data])
        status = module.main()
    error = capsys.readouterr().err
    assert status == 2
    assert "SLOWFAST.ALPHA: 2 in the checkpoint, 4 now" in error
    assert "Traceback" not in error
