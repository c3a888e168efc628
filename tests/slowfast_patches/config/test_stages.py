"""MULTIGRID.STAGES: from YAML to a schedule, scaled as other keys are, and trained."""

from dataclasses import replace

import pytest

from multigrid import Shape
from slowfast_patches.config import check_recipe, load_recipe, parse_recipe
from slowfast_patches.config.recipe_stages import scaled_rows, stages_of
from slowfast_patches.plan.recipe_schedule import schedule_of
from slowfast_patches.registry import MODELS
from slowfast_patches.utils.errors import UserError
from tests.slowfast_patches.train.conftest import At, die

RECIPE = "configs/Demo/STAGES_COOLDOWN.yaml"
ROWS = [
    {"shape": [16, 4, 24], "until": 1, "rate": [0.004, 0.02]},
    {"shape": [[8, 4, 32], [4, 8, 32]], "until": 2, "rate": 0.02, "bn_group_size": 2},
    {"shape": [4, 8, 32], "until": 3},
]


def stages(recipe):
    return schedule_of(recipe, 640).phases


def test_the_table_of_a_recipe_is_its_schedule():
    recipe = load_recipe(RECIPE)
    check_recipe(recipe)
    assert [(p.base_shape, p.stop) for p in stages(recipe)] == [
        (Shape(24, 8, 32), 53),  # 1,280 clips in 53.3 mini-batches of 24
        (Shape(24, 8, 32), 480),
        (Shape(8, 16, 64), 960),
        (Shape(8, 16, 64), 1440),
    ]
    assert stages(recipe) == stages(parse_recipe(recipe.text, "a checkpoint"))


def test_length_and_reference_batch_scale_the_table_with_the_other_keys():
    """Half of the epochs, and twice the rate on two machines."""
    keys = ("SOLVER.LENGTH", 0.5, "NUM_SHARDS", 2, "SOLVER.REFERENCE_BATCH_SIZE", 8)
    recipe = load_recipe(RECIPE, keys)
    assert recipe.base_shape == Shape(16, 16, 64)
    first, *_, last = stages(recipe)
    assert first.base_shape == Shape(48, 8, 32)
    assert last.baseline_epochs == (12.0, 15.0)
    schedule = schedule_of(recipe, 640)
    assert schedule.at(0).lr == pytest.approx(2 * 0.006)
    assert schedule.at(last.start).lr == pytest.approx(2 * 0.02)


def test_rates_are_not_scaled_for_a_batch_that_the_table_does_not_have():
    """The rows keep their 24 and 8 clips, so a quarter of the rates would be too low."""
    keys = ["TRAIN.BATCH_SIZE", 2, "SOLVER.REFERENCE_BATCH_SIZE", 8]
    with pytest.raises(UserError, match=r"no row has the baseline's shape \[2, 16, 64\]"):
        load_recipe(RECIPE, keys)
    rows = "[{'shape': [6, 8, 32], 'until': 12}, {'shape': [2, 16, 64], 'until': 30}]"
    found = load_recipe(RECIPE, [*keys, "MULTIGRID.STAGES", rows])
    assert found.solver.base_lr == pytest.approx(load_recipe(RECIPE).solver.base_lr / 4)


def test_rows_are_scaled_by_hand_and_stay_as_they_are():
    rows = [{"until": 1, "rate": [0.5, 1.0]}, {"until": 2, "rate": 0.3}, {"until": 3}]
    first, second, third = scaled_rows(rows, epochs=1 / 3, rate=2.0)
    assert first == {"until": 0.333333, "rate": [1.0, 2.0]}
    assert second == {"until": 0.666667, "rate": 0.6}
    assert third == {"until": 1.0}
    assert rows[0] == {"until": 1, "rate": [0.5, 1.0]}
    assert scaled_rows(rows) == rows


def test_rows_without_a_size_have_the_bn_groups_of_the_recipe_if_the_model_has_bn(monkeypatch):
    keys = ["SOLVER.MAX_EPOCH", 3, "MULTIGRID.BN_BASE_SIZE", 4, "NUM_SHARDS", 2]
    recipe = load_recipe(RECIPE, [*keys, "MULTIGRID.STAGES", ROWS])
    assert [stage.bn_group_size for stage in stages_of(recipe)] == [4, 2, 4]
    assert stages_of(recipe)[1].shape == (Shape(16, 4, 32), Shape(8, 8, 32))
    arch = recipe.model.arch
    monkeypatch.setitem(MODELS.entries, arch, replace(MODELS[arch], has_batchnorm=False))
    assert [stage.bn_group_size for stage in stages_of(recipe)] == [None] * 3


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["MULTIGRID.LONG_CYCLE", True], "MULTIGRID.STAGES replaces the cycles"),
        (["SOLVER.MAX_EPOCH", 40], "ends at epoch 30, but SOLVER.MAX_EPOCH is 40"),
        (["MULTIGRID.STAGES", "[{'shape': [8, 16], 'until': 30}]"], "a list of rows such as"),
        (["MULTIGRID.STAGES", "[{'until': 30}]"], "a list of rows such as"),
        (["MULTIGRID.STAGES", "[{'shape': [8, 16, 64], 'until': 30, 'lr': 1}]"], "a list of rows"),
        (["MULTIGRID.STAGES", "[{'shape': [8, 16, 64], 'until': -1}]"], "a list of rows such as"),
        (["MULTIGRID.STAGES", "[3]"], "MULTIGRID.STAGES must be a mapping"),
    ],
)
def test_a_table_that_contradicts_itself_or_other_keys_is_refused(overrides, words):
    with pytest.raises(ValueError, match=words):
        schedule_of(load_recipe(RECIPE, overrides), 640)


def test_the_baseline_of_a_recipe_with_stages_has_none():
    from slowfast_patches.config.recipe_cycles import without_multigrid

    recipe = load_recipe(RECIPE)
    assert recipe.uses_multigrid
    baseline = without_multigrid(recipe)
    assert not baseline.uses_multigrid
    assert schedule_of(baseline, 640).shapes == (Shape(8, 16, 64),)


def test_a_recipe_with_stages_trains_resumes_and_logs_its_shapes(train, tmp_path):
    """24 videos: 2 mini-batches of 16 clips, then 8, 4 and 8 clips, and 5 mini-batches of 4."""
    keys = ("MULTIGRID.LONG_CYCLE", False, "MULTIGRID.SHORT_CYCLE", False, "SOLVER.MAX_EPOCH", 3)
    keys += ("MULTIGRID.STAGES", ROWS, "SOLVER.STEPS", [0, 2], "TEST.ENABLE", False)
    whole = train(tmp_path / "whole", *keys)
    with pytest.raises(SystemExit):
        train(tmp_path / "resumed", *keys, hooks=[At(3, die)])
    resumed = train(tmp_path / "resumed", *keys)
    import torch

    states = [
        torch.load(folder / "checkpoints/checkpoint_iter_00000010.pyth", weights_only=True)
        for folder in (whole, resumed)
    ]
    for name, value in states[0]["model_state"].items():
        assert torch.equal(value, states[1]["model_state"][name]), name
    text = (whole / "train.log").read_text()
    for shape in ("16×4×24²", "8×4×32²", "4×8×32²"):
        assert shape in text
