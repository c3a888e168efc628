"""A folder for the Hub. Networks have one block in each stage."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import slowfast_patches
from slowfast_patches.extras.hub.folder import write_hub_folder
from slowfast_patches.models.build_model import build_model
from slowfast_patches.train import checkpoint as checkpoints
from slowfast_patches.train.predict import Predictor
from tests.slowfast_patches.train.conftest import _one_block
from tests.slowfast_patches.train.made_checkpoint import made

__all__ = ["_one_block"]

NAMES = tuple("abcdefgh")


@pytest.fixture
def published(tiny_config, tmp_path) -> Callable[..., tuple[Predictor, Path]]:
    """`published("KEY", value, ...)`: a predictor with random weights, and its folder."""

    def make(*keys: object) -> tuple[Predictor, Path]:
        recipe = tiny_config(tmp_path / "private", "TEST.NUM_ENSEMBLE_VIEWS", 1, *keys)
        torch.manual_seed(0)
        state = {
            name: 3 * value if value.is_floating_point() else value
            for name, value in build_model(recipe).state_dict().items()
        }
        checkpoint = checkpoints.save(
            tmp_path, made(cfg=recipe.text, model_state=state, class_names=NAMES)
        )
        model = slowfast_patches.load_model(checkpoint)
        write_hub_folder(model, checkpoint, tmp_path / "hub")
        return model, tmp_path / "hub"

    return make
