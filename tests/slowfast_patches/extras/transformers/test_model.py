"""Video transformers: building, loading, operation counts and learning rates of layers."""

import logging
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from multigrid import ScheduleStep, Shape, prepare_step
from slowfast_patches.config import load_recipe, parse_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.extras.transformers import transformer_model as transformer
from slowfast_patches.extras.transformers.keys import HfKeys
from slowfast_patches.models.build_model import build_model, build_on_meta
from slowfast_patches.models.freeze import freeze
from slowfast_patches.models.layers.dropout import seed_dropout
from slowfast_patches.models.solver import build_optimizer

pytestmark = pytest.mark.slow("imports transformers")

TINY = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
KINDS = {
    "videomae": TINY | {"intermediate_size": 16},
    "timesformer": TINY | {"intermediate_size": 16},
    "vivit": TINY | {"intermediate_size": 16},
    "vjepa2": TINY | {"mlp_ratio": 2, "num_pooler_layers": 1},
}
BRANCHES = {"videomae": 2, "timesformer": 1, "vivit": 1, "vjepa2": 1}
"""Number of residual branches of a layer that drop path is added to."""


def recipe(kind: str | Path = "videomae", *overrides: object, **config: object) -> Recipe:
    """Make a recipe with clips of 4 × 32², which are 2 × 2 × 2 patches of VideoMAE."""
    grid = ["DATA.NUM_FRAMES", 4, "DATA.TRAIN_CROP_SIZE", 32, "DATA.TEST_CROP_SIZE", 32]
    model = ["MODEL.ARCH", "hf", "HF.MODEL", str(kind), "MODEL.NUM_CLASSES", 3, "NUM_GPUS", 0]
    values = KINDS.get(str(kind), {}) | config
    return load_recipe(None, [*grid, *model, "HF.CONFIG", str(values), *overrides])


def built(*arguments: Any, **config: object) -> Any:
    torch.manual_seed(0)
    return build_model(recipe(*arguments, **config), grouped_bn=True)


def clips(count: int, frames: int = 4, crop: int = 32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(count, 3, frames, crop, crop, generator=generator)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a VideoMAE of 5 classes by save_pretrained."""
    from transformers import VideoMAEConfig, VideoMAEForVideoClassification

    path = tmp_path_factory.mktemp("videomae")
    grid = {"image_size": 32, "num_frames": 4, "num_labels": 5}
    torch.manual_seed(2)
    VideoMAEForVideoClassification(VideoMAEConfig(**KINDS["videomae"], **grid)).save_pretrained(
        path
    )
    return path


# Building.


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_trains_at_every_shape_and_scores_in_evaluation(kind):
    model = built(kind)
    for frames, crop in ((4, 32), (2, 48)):
        model.train().zero_grad()
        logits = model(clips(2, frames, crop))
        nn.functional.cross_entropy(logits, torch.tensor([0, 2])).backward()
        assert all(p.grad is not None and p.grad.any() for p in model.parameters())
        with torch.no_grad():
            torch.testing.assert_close(model.eval()(clips(2, frames, crop)), logits.softmax(1))


@pytest.mark.parametrize("kind", KINDS)
def test_drop_path_rises_from_zero_changes_no_name_and_belongs_to_the_clips(kind):
    model = built(kind, "HF.DROP_PATH", 0.75, num_hidden_layers=3).train()
    rates = [m.drop_prob for m in model.modules() if hasattr(m, "drop_prob")]
    assert rates == [rate for rate in (0, 0.375, 0.75) for _ in range(BRANCHES[kind])]
    assert list(model.state_dict()) == list(built(kind, num_hidden_layers=3).state_dict())

    def scores(first: int) -> torch.Tensor:
        seed_dropout(model, range(first, first + 8))
        with torch.no_grad():
            return model(clips(8))

    again, other = scores(16), scores(24)
    assert torch.equal(scores(16), again)
    assert not torch.equal(again, other)


# Loading.


def test_weights_with_the_names_of_older_versions_are_taken(folder, tmp_path):
    """Until version 5 of transformers, the biases of VideoMAE were called q_bias and v_bias."""
    from safetensors.torch import load_file, save_file

    older = {
        name.replace("query.bias", "q_bias").replace("value.bias", "v_bias"): tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    names = [name for name in older if name.endswith(("q_bias", "v_bias"))]
    assert len(names) == 2 * TINY["num_hidden_layers"]
    older |= {name: torch.randn(8) for name in names}
    shutil.copy(folder / "config.json", tmp_path)
    save_file(older, tmp_path / "model.safetensors", {"format": "pt"})
    found = built(tmp_path).state_dict()
    for name in names:
        now = name.replace("q_bias", "query.bias").replace("v_bias", "value.bias")
        assert torch.equal(found[now], older[name])


def test_a_folders_weights_are_taken_and_another_number_of_classes_has_a_new_head(folder, caplog):
    from transformers import VideoMAEForVideoClassification

    theirs = VideoMAEForVideoClassification.from_pretrained(folder).eval()
    same = built(folder, "MODEL.NUM_CLASSES", 5).eval()
    with torch.no_grad():
        expected = theirs(clips(2)[0].transpose(1, 2)).logits.softmax(1)
        torch.testing.assert_close(same(clips(2)), expected, rtol=0, atol=1e-5)
    caplog.set_level(logging.INFO)
    other = built(folder, "DATA.NUM_FRAMES", 8, "DATA.TRAIN_CROP_SIZE", 48)
    assert "randomly: classifier.bias and classifier.weight" in caplog.text
    for name, value in theirs.base_model.state_dict().items():
        assert torch.equal(other.base_model.state_dict()[name], value), name
    assert other(clips(1, 8, 48)).shape == (1, 3)  # positions are those of the folder's grid


@pytest.mark.parametrize("part", ["whole", "encoder"])
def test_a_v_jepa_2_that_was_trained_here_is_taken_again_and_only_its_probe_is_trained(
    part, tmp_path
):
    """What is saved lacks the predictor. The probe is the attentive pooler and the classifier."""
    trained = built("vjepa2")
    (trained if part == "whole" else trained.base_model).save_pretrained(tmp_path)
    model = built(tmp_path, "MODEL.NUM_CLASSES", 5)
    freeze(model, ["backbone"])
    for name, value in model.base_model.state_dict().items():
        assert torch.equal(value, trained.base_model.state_dict()[name]), name
    query = model.pooler.query_tokens
    assert torch.equal(query, trained.pooler.query_tokens) == (part == "whole")
    model(clips(2)).sum().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == name.startswith(("pooler.", "classifier.")), name


def test_other_colours_than_the_weights_know_are_said(folder, tmp_path, caplog):
    known = shutil.copytree(folder, tmp_path / "known")
    (known / "preprocessor_config.json").write_text('{"image_mean": [0.5, 0.5, 0.5]}')
    built(known, "DATA.MEAN", [0.5, 0.5, 0.5])
    assert "DATA.MEAN" not in caplog.text
    built(known)
    assert f"[0.45, 0.45, 0.45], but the model in {known} was trained with [0.5, 0.5" in caplog.text


@pytest.mark.parametrize(
    ("kind", "config", "said"),
    [
        ("vit", {}, "neither a folder with a config.json, nor one of timesformer, videomae"),
        ("videomae", {"hiden_size": 8}, "HF.CONFIG.hiden_size is not in the model's configuration"),
        ("videomae", {"hidden_size": "wide"}, "expected int, got str"),
    ],
)
def test_what_cannot_be_built_is_said(kind, config, said):
    with pytest.raises(ValueError, match=said):
        build_on_meta(recipe(kind, **config))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of some-org/videomae in the cache of huggingface_hub, and go offline."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    repository = tmp_path / "cache" / "models--some-org--videomae"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    return repository / "snapshots" / ("0" * 40)


def test_a_models_name_stands_for_the_folder_that_was_fetched(folder, hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder, hub)
    state = built("some-org/videomae").state_dict()
    for name, value in built(folder).state_dict().items():
        assert torch.equal(state[name], value), name
    (hub / "model.safetensors").rename(hub / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"some-org/videomae has no \*.safetensors. Pickles are"):
        built("some-org/videomae")
    with pytest.raises(ValueError, match=r"^HF.MODEL no-org/x is not a folder, and.*"):
        built("no-org/x")


def test_weights_of_another_model_or_none_are_refused(folder, tmp_path):
    from safetensors.torch import load_file, save_file

    for config in ({"hidden_size": 16}, {"num_hidden_layers": 3}):
        with pytest.raises(ValueError, match=r"weights lack videomae.*, or have them in another"):
            built(folder, **config)
    broken = shutil.copytree(folder, tmp_path / "broken")
    weights = load_file(broken / "model.safetensors")
    name = next(name for name in weights if name.endswith("attention.output.dense.bias"))
    weights[name][0] = torch.nan
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=f"broken has values that are not finite in {name}"):
        built(broken)


# HF.CONFIG.


def test_a_models_configuration_is_a_mapping_whose_values_can_be_set_one_by_one(tmp_path):
    (tmp_path / "base.yaml").write_text("HF: {CONFIG: {hidden_size: 8, layer_norm_eps: 1e-6}}")
    (tmp_path / "delta.yaml").write_text("_BASE_: base.yaml\nHF: {CONFIG: {hidden_size: 16}}")
    found = load_recipe(tmp_path / "delta.yaml", ["HF.CONFIG.patch_size", "8"])
    expected = {"hidden_size": 16, "layer_norm_eps": 1e-6, "patch_size": 8}
    assert dict(HfKeys.of(found).config) == expected
    assert parse_recipe(found.text, "its text") == found


# Learning rates of layers.


def test_a_layers_rate_is_a_part_of_the_next_ones_and_positions_do_not_decay():
    asked = ["SOLVER.OPTIMIZING_METHOD", "adamw", "SOLVER.WEIGHT_DECAY", 0.05]
    asked += ["SOLVER.LAYER_DECAY", 0.5, "SOLVER.ZERO_WD_1D_PARAM", True]
    model = built("vivit")
    optimizer = build_optimizer(recipe("vivit", *asked), model)
    prepare_step(ScheduleStep(0, 0, Shape(1, 4, 16), 0.8, None, 0, 0.0), model, optimizer)
    found = {
        parameter: (group["lr"], group["weight_decay"])
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    assert found.keys() == set(model.parameters())
    expected = {
        "vivit.embeddings.patch_embeddings.projection.weight": (0.1, 0.05),
        "vivit.embeddings.position_embeddings": (0.1, 0),
        "vivit.embeddings.cls_token": (0.1, 0),
        "vivit.layers.0.mlp.fc1.weight": (0.2, 0.05),
        "vivit.layers.1.layernorm_after.weight": (0.4, 0),
        "vivit.layers.1.mlp.fc1.weight": (0.4, 0.05),
        "vivit.layernorm.bias": (0.8, 0),
        "classifier.weight": (0.8, 0.05),
    }
    for name, rate_and_decay in expected.items():
        assert found[model.get_parameter(name)] == pytest.approx(rate_and_decay), name


def test_no_other_recipe_needs_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    runpy.run_path(transformer.__file__)
    build_on_meta(load_recipe(None, ["MODEL.ARCH", "c2d"]))
    with pytest.raises(ValueError, match=r"pip install 'transformers>="):
        build_on_meta(recipe())
