"""Keys and recipes of transformers: what a published model has, and what changes a result."""

import pytest
import torch

from multigrid import set_coverage
from slowfast_patches.config import check_recipe, load_recipe
from slowfast_patches.config.key_lists import changes_scores
from slowfast_patches.launch.launch import resolve
from slowfast_patches.models.build_model import build_model
from slowfast_patches.models.freeze import freeze
from slowfast_patches.plan.facts import weights_fact
from slowfast_patches.plan.run_identity import TRAINING, Identity, differences_between, run_identity

VIDEOMAE = "configs/Demo/VIDEOMAE_DEMO.yaml"


def test_a_key_of_bn_has_no_effect(caplog):
    check_recipe(
        load_recipe(None, ["NUM_GPUS", 0, "MODEL.ARCH", "hf", "BN.USE_PRECISE_STATS", True])
    )
    assert "has no effect with MODEL.ARCH hf" in caplog.text


def test_the_configuration_changes_the_scores_and_drop_path_does_not():
    assert changes_scores("HF.CONFIG")
    assert not changes_scores("HF.DROP_PATH")


def test_automatic_precision_is_full_on_a_cpu(monkeypatch):
    for name in ("avx512_bf16", "amx_tile"):
        monkeypatch.setattr(torch.cpu, f"_is_{name}_supported", lambda: True)
    keys = ["TRAIN.MIXED_PRECISION", "auto", "NUM_GPUS", 0, "MODEL.ARCH", "hf"]
    assert resolve(load_recipe(None, keys)).train.mixed_precision is False


def test_the_folder_of_a_pretrained_transformer_counts(tmp_path):
    folder = tmp_path / "pretrained"
    folder.mkdir()
    recipe = load_recipe(VIDEOMAE, ("NUM_GPUS", 0)).replaced({"HF.MODEL": str(folder)})
    (folder / "config.json").write_text("{}")
    before = weights_fact(recipe)
    (folder / "config.json").write_text('{"a": 1}')
    assert weights_fact(recipe) != before


@pytest.mark.parametrize(
    ("keys", "matters"),
    [
        ((), False),
        (("HF.DROP_PATH", 0.3), True),
        (("HF.CONFIG.attention_probs_dropout_prob", 0.1), True),
    ],
)
def test_micro_batches_of_a_transformer_count_if_it_draws_random_numbers(keys, matters):
    assert division_matters(*keys) is matters


def division_matters(*keys: object) -> bool:
    """Return whether a training of VideoMAE depends on the number of micro-batches."""

    def identity(parts: int) -> Identity:
        overrides = ("NUM_GPUS", 0, "DATA.PATH_TO_DATA_DIR", "/nowhere", *keys)
        return run_identity(
            load_recipe(VIDEOMAE, (*overrides, "SOLVER.ACCUMULATION_STEPS", parts)), clips=False
        )

    return "division" in differences_between(identity(1), identity(2), TRAINING)


def test_frozen_position_embeddings_follow_the_coverage_of_training_clips():
    recipe = load_recipe("configs/Demo/VIDEOMAE_DEMO_MULTIGRID.yaml", ["MODEL.NUM_CLASSES", 8])
    model = build_model(recipe)
    freeze(model, ["backbone"])
    learning = {name.split(".")[0] for name, p in model.named_parameters() if p.requires_grad}
    assert learning == {"fc_norm", "classifier"}
    embeddings, clips = model.videomae.embeddings, torch.randn(2, 8, 3, 32, 32)
    found = {}
    for mode in (True, False):
        model.train(mode)
        set_coverage(model, torch.tensor([[0.4, 1.0], [0.6, 1.0]]))
        coarse = embeddings(clips)
        set_coverage(model, None)
        found[mode] = torch.equal(coarse, embeddings(clips))
    assert found == {True: False, False: True}


def test_the_model_is_stored_where_it_has_an_effect_although_it_is_the_default():
    assert "MODEL: videomae" in load_recipe(None, ["MODEL.ARCH", "hf"]).text
    assert "videomae" not in load_recipe(None).text
