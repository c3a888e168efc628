"""The weights in the package: loaded by their names, with a filled-in card."""

from pathlib import Path

import pytest

from slowfast_patches import load_model
from slowfast_patches.models.build_model import build_model
from slowfast_patches.models.weights import load_weights
from slowfast_patches.models.weights.weight_files import SHIPPED, local_file


@pytest.mark.parametrize("name", SHIPPED)
def test_the_weights_of_the_package_predict_and_start_a_training(name: str, tiny_data: Path):
    model = load_model(name)
    assert model.class_names is not None
    video = next((tiny_data / "test").rglob("*.mp4"))
    assert model.scores(str(video)).shape == (len(model.class_names),)
    load_weights(build_model(model.recipe), name, complete=True)
    card = local_file(name).with_name("README.md").read_text()
    assert "license: " in card
    assert "(fill in)" not in card
