"""Registered changes of clips are tried before a training starts."""

import pytest

from slowfast_patches.seams import ClipTransform
from slowfast_patches.train import run as run_module
from slowfast_patches.utils.errors import UserError


@pytest.mark.slow("builds networks")
def test_a_change_that_is_on_is_checked_with_the_smallest_clip(tiny_config, tmp_path, monkeypatch):
    def refuse(recipe, frames, crop):
        raise UserError(f"no clips of {frames} frames of {crop} pixels")

    recipe = tiny_config(tmp_path)
    off = ClipTransform("TRAIN.COMPILE", pytest.fail, refuse)
    monkeypatch.setattr(run_module, "CLIP_TRANSFORMS", [off])
    run_module._check_training(recipe, resumes=False)
    on = ClipTransform("TRAIN.ENABLE", pytest.fail, refuse)
    monkeypatch.setattr(run_module, "CLIP_TRANSFORMS", [off, on])
    with pytest.raises(UserError, match="no clips of 2 frames of 16 pixels"):
        run_module._check_training(recipe, resumes=False)
