"""Pretrained transformers: which files are read and fetched, and which are refused."""

import json
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.extras.transformers import pretrained
from slowfast_patches.extras.transformers.keys import HfKeys
from slowfast_patches.extras.transformers.pretrained import (
    configuration,
    load_folder,
    of_folder,
    weight_files,
)
from slowfast_patches.extras.transformers.transformer_model import (
    build_transformer,
    input_size,
    parameter_depths,
)
from slowfast_patches.utils.errors import UserError

SMALL = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 16, "patch_size": 16}


def recipe(model: object, *overrides: object, **config: object) -> Recipe:
    grid = ["DATA.NUM_FRAMES", 4, "DATA.TRAIN_CROP_SIZE", 32, "DATA.TEST_CROP_SIZE", 32]
    kind = ["MODEL.ARCH", "hf", "HF.MODEL", str(model), "MODEL.NUM_CLASSES", 3, "NUM_GPUS", 0]
    return load_recipe(None, [*grid, *kind, "HF.CONFIG", str(config), *overrides])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a VideoMAE of 3 classes for clips of 2 × 32² by save_pretrained."""
    from transformers import VideoMAEConfig, VideoMAEForVideoClassification

    path = tmp_path_factory.mktemp("saved")
    grid = {"image_size": 32, "num_frames": 2, "num_labels": 3}
    torch.manual_seed(2)
    VideoMAEForVideoClassification(VideoMAEConfig(**SMALL, **grid)).save_pretrained(path)
    return path


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """Return a copy of the VideoMAE that a test may change."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


def test_the_weights_of_a_folder_are_its_files_of_weights_and_configuration(tmp_path):
    for name in ("b.safetensors", "a.bin", "config.json", "README.md"):
        (tmp_path / name).touch()
    names = ["a.bin", "b.safetensors", "config.json"]
    assert weight_files(recipe(tmp_path)) == [tmp_path / name for name in names]
    assert weight_files(recipe("some-org/model")) == []
    assert weight_files(recipe("vivit")) is None


def test_a_published_model_is_read_from_where_it_lies(tmp_path):
    assert HfKeys.of(of_folder(recipe("videomae"), tmp_path)).model == str(tmp_path)


def test_a_new_model_has_the_grid_of_the_recipe_and_a_loaded_one_its_own(folder):
    new, where = configuration(recipe("videomae", **SMALL))
    assert where is None
    assert (new.num_frames, new.image_size, new.num_labels, new.hidden_size) == (4, 32, 3, 8)
    loaded, where = configuration(recipe(folder, "MODEL.NUM_CLASSES", 5, hidden_act="relu"))
    assert where == folder
    assert (loaded.num_frames, loaded.num_labels, loaded.hidden_act) == (2, 5, "relu")


@pytest.mark.parametrize("key", ["image_size", "num_frames", "num_labels", "hiden_size"])
def test_what_another_key_says_is_not_said_again(key):
    with pytest.raises(UserError, match=rf"HF\.CONFIG\.{key} is not in .*DATA\.NUM_FRAMES, MODEL"):
        configuration(recipe("videomae", **{key: 3}))


def test_another_type_of_model_is_refused(folder):
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {"model_type": "vit"}))
    types = "timesformer, videomae, vivit or vjepa2"
    with pytest.raises(UserError, match=f"has the type vit, which is not supported.* {types}"):
        configuration(recipe(folder))


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_damaged_configuration_is_named(folder, content):
    (folder / "config.json").write_text(content)
    with pytest.raises(UserError, match=f"HF.MODEL {folder}"):
        configuration(recipe(folder))


def test_a_folder_without_configuration_or_safe_weights_is_refused(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"has no \*\.safetensors\. Pickles are not loaded"):
        configuration(recipe(folder))
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match="is neither a folder with a config"):
        configuration(recipe(folder))


class Hub:
    """Stands in for the Hugging Face Hub: one model, and the requests."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked = folder, list[Any]()

    def fetch(self, name: str, **options: Any) -> str:
        self.asked.append((name, options))
        if name != "some-org/model":
            raise OSError("401: unauthorised")
        return str(self.folder)


@pytest.fixture
def hub(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    made = Hub(folder)
    monkeypatch.setattr("huggingface_hub.snapshot_download", made.fetch)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return made


def test_a_name_of_the_hub_is_fetched_without_pickles(hub, folder):
    assert configuration(recipe("some-org/model"))[1] == folder
    ((name, options),) = hub.asked
    assert name == "some-org/model"
    patterns = options["allow_patterns"]
    assert {"config.json", "*.safetensors"} < set(patterns)
    assert not any("bin" in pattern or pattern == "*" for pattern in patterns)
    with pytest.raises(UserError, match=r"no-org/x is not a folder, and cannot be downloaded: 401"):
        configuration(recipe("no-org/x"))


@pytest.mark.parametrize("name", ["model", "../org/model", "a/b/c", "some-org/", "~/model"])
def test_what_is_no_name_of_the_hub_is_not_asked_for(hub, name):
    with pytest.raises(UserError, match="is neither a folder"):
        configuration(recipe(name))
    assert hub.asked == []


def test_a_folder_of_that_name_is_not_fetched(hub, folder):
    shutil.copytree(folder, "some-org/model")
    assert configuration(recipe("some-org/model"))[1] == Path("some-org/model")
    assert hub.asked == []


# Weights.


def loaded(folder: Path, **keys: object) -> Any:
    made = recipe(folder, *(each for pair in keys.items() for each in pair))
    return load_folder(folder, configuration(made)[0], made.data)


def test_all_weights_of_the_folder_are_in_the_model(folder, caplog):
    from safetensors.torch import load_file

    caplog.set_level(logging.INFO)
    state = loaded(folder).state_dict()
    for name, value in load_file(folder / "model.safetensors").items():
        now = name.replace("q_bias", "query.bias").replace("v_bias", "value.bias")
        assert torch.equal(state[now], value), name
        assert state[now].dtype == torch.float32
    assert f"Weights loaded from {folder}. Initialised randomly: none. Unused: none" in caplog.text


def change_weights(folder: Path, change: Any) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def test_a_head_may_be_missing_and_what_is_left_over_is_said(folder, caplog):
    caplog.set_level(logging.INFO)

    def change(weights: dict[str, torch.Tensor]) -> None:
        del weights["classifier.bias"]
        weights["decoder.extra"] = torch.zeros(2)

    change_weights(folder, change)
    loaded(folder, **{"MODEL.NUM_CLASSES": 5})
    said = "randomly: classifier.bias and classifier.weight. Unused: decoder.extra."
    assert said in caplog.text


def test_a_backbone_without_some_weights_is_refused(folder):
    name = "videomae.encoder.layer.0.output.dense.bias"
    change_weights(folder, lambda weights: weights.pop(name))
    with pytest.raises(UserError, match=f"the weights lack {name}, or have them in another shape"):
        loaded(folder)


def test_weights_that_are_not_finite_are_refused(folder):
    name = "videomae.encoder.layer.0.output.dense.bias"
    change_weights(folder, lambda weights: weights[name].fill_(torch.inf))
    with pytest.raises(UserError, match=f"{folder} has values that are not finite in {name}"):
        loaded(folder)


def test_weights_that_cannot_be_read_are_refused(folder):
    (folder / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match=f"^HF.MODEL {folder}: "):
        loaded(folder)


# Colours.


def colours_said(folder: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    data = SimpleNamespace(mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))
    pretrained._warn_of_normalisation(folder, data)
    return [record.getMessage() for record in caplog.records]


def test_each_colour_that_differs_is_said(tmp_path, caplog):
    file = tmp_path / "preprocessor_config.json"
    assert colours_said(tmp_path, caplog) == []
    for mean, std, keys in (
        ([0.5, 0.5, 0.50001], [0.2, 0.2, 0.2], []),
        ([0.4, 0.5, 0.5], [0.2, 0.2, 0.2], ["MEAN"]),
        ([0.5, 0.5, 0.5], [0.2, 0.2, 0.3], ["STD"]),
        ([0.1, 0.1, 0.1], [0.1, 0.1, 0.1], ["MEAN", "STD"]),
    ):
        file.write_text(json.dumps({"image_mean": mean, "image_std": std}))
        said = colours_said(tmp_path, caplog)
        assert [text.split()[0] for text in said] == [f"DATA.{key}" for key in keys]
        values = {"MEAN": mean, "STD": std}
        for key, text in zip(keys, said, strict=True):
            assert f"trained with {values[key]}. Set DATA.{key} to these values." in text


def test_the_processor_of_videos_goes_before_that_of_images(tmp_path, caplog):
    other = {"image_mean": [0.1] * 3, "image_std": [0.2] * 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(other))
    same = {"image_mean": [0.5] * 3, "image_std": [0.2] * 3}
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(same))
    assert colours_said(tmp_path, caplog) == []
    (tmp_path / "video_preprocessor_config.json").write_text("{}")  # says nothing of colours
    assert colours_said(tmp_path, caplog) == []


@pytest.mark.parametrize("content", ["{", "3", '{"image_mean": 1}'])
def test_a_damaged_processor_is_named(tmp_path, caplog, content):
    (tmp_path / "preprocessor_config.json").write_text(content)
    with pytest.raises(UserError, match=str(tmp_path / "preprocessor_config.json")):
        colours_said(tmp_path, caplog)


# The model.


def test_the_depths_of_parameters_count_from_the_embeddings():
    model = build_transformer(recipe("videomae", **SMALL))
    depths = parameter_depths(model)
    assert depths.keys() == set(model.parameters())
    found = {name: depths[parameter] for name, parameter in model.named_parameters()}
    assert found["videomae.embeddings.patch_embeddings.projection.weight"] == 0
    assert found["videomae.encoder.layer.0.output.dense.weight"] == 1
    assert found["videomae.encoder.layer.1.output.dense.weight"] == 2
    assert found["classifier.weight"] == 3
    assert input_size(model) == (4, 32)


@pytest.mark.parametrize(("layers", "rates"), [(1, [0.0]), (3, [0.0, 0.4, 0.8])])
def test_drop_path_rises_from_the_first_layer_to_the_last(layers, rates):
    config = SMALL | {"num_hidden_layers": layers}
    model = build_transformer(recipe("videomae", "HF.DROP_PATH", 0.8, **config))
    found = [module.drop_prob for module in model.modules() if hasattr(module, "drop_prob")]
    assert found == pytest.approx([rate for rate in rates for _ in range(2)])
    plain = build_transformer(recipe("videomae", **config))
    assert not any(hasattr(module, "drop_prob") for module in plain.modules())


def test_a_pathway_goes_in_and_logits_come_out():
    model = build_transformer(recipe("videomae", **SMALL)).eval()
    clips = torch.rand(2, 3, 4, 32, 32)
    seen = []
    model.videomae.embeddings.register_forward_pre_hook(lambda _, x: seen.append(x[0]))
    with torch.no_grad():
        logits = model([clips])
    assert logits.shape == (2, 3)
    assert torch.equal(seen[0], clips.transpose(1, 2))


def test_v_jepa_2_has_no_predictor():
    config = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "mlp_ratio": 2}
    model = build_transformer(recipe("vjepa2", **config, num_pooler_layers=1))
    assert not list(model.base_model.predictor.parameters())
