"""What a transformer has in its folder for the Hub, and which are refused."""

from types import SimpleNamespace
from typing import Any

import pytest

from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.extras.transformers.hub import published
from slowfast_patches.utils.errors import UserError


def transformer(kind: str, **config: object) -> Any:
    """Return what `published` needs of a model: its type, and its configuration for clips."""
    values = {"model_type": kind, "num_frames": 16, "image_size": 224, **config}
    return SimpleNamespace(
        config=SimpleNamespace(**values, to_dict=lambda: {"hidden_size": 8}),
    )


def hf(*keys: object) -> Recipe:
    grid = ["DATA.NUM_FRAMES", 16, "DATA.TEST_CROP_SIZE", 224, "MODEL.ARCH", "hf"]
    return load_recipe(None, [*grid, "TEST.NUM_SPATIAL_CROPS", 1, *keys])


def test_a_transformer_is_published_with_its_processor_and_without_a_private_path(tmp_path):
    made = hf("HF.MODEL", str(tmp_path), "DATA.MEAN", [0.1, 0.2, 0.3], "DATA.STD", [0.4, 0.5, 0.6])
    found, files = published(transformer("videomae"), made, ["go", "stay"])
    assert found["HF.MODEL"] == tmp_path.name
    config = files["config.json"]
    assert config["hidden_size"] == 8
    assert config["problem_type"] == "single_label_classification"
    assert config["id2label"] == {0: "go", 1: "stay"}
    assert config["label2id"] == {"go": 0, "stay": 1}
    processor = files["preprocessor_config.json"]
    assert processor["crop_size"] == {"height": 224, "width": 224}
    assert (processor["image_mean"], processor["image_std"]) == ([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])
    steps = ("do_resize", "do_center_crop", "do_rescale", "do_normalize")
    assert all(processor[step] is True for step in steps)
    assert processor["size"]["shortest_edge"] >= 224


def test_other_types_have_no_processor_and_several_labels_are_said():
    made = hf("MODEL.HEAD_ACT", "sigmoid", "HF.MODEL", "vivit")
    found, files = published(transformer("vivit"), made, None)
    assert list(files) == ["config.json"]
    assert found["HF.MODEL"] == "vivit"
    assert files["config.json"]["problem_type"] == "multi_label_classification"
    assert "id2label" not in files["config.json"]


@pytest.mark.parametrize("size", [{"num_frames": 8}, {"image_size": 112}])
def test_a_transformer_of_another_size_than_the_test_is_refused(size):
    frames, crop = size.get("num_frames", 16), size.get("image_size", 224)
    said = f"set DATA.NUM_FRAMES {frames} and DATA.TEST_CROP_SIZE {crop}"
    with pytest.raises(UserError, match=said):
        published(transformer("videomae", **size), hf(), None)
