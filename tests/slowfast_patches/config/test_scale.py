"""Scaling of recipes by hand: their length, and the rates for a batch size."""

import pytest

from slowfast_patches.config import load_recipe, parse_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.recipe_cycles import learning_rate_of
from slowfast_patches.config.scale import scale_rates
from slowfast_patches.launch.launch import resolve
from slowfast_patches.utils.errors import UserError

# 8 clips on each of 8 GPUs.
RECIPE = ["TRAIN.BATCH_SIZE", 64, "NUM_GPUS", 8]
RECIPE += ["SOLVER.BASE_LR", 0.8, "SOLVER.WARMUP_START_LR", 0.08, "SOLVER.COSINE_END_LR", 0.008]
RECIPE += ["SOLVER.MAX_EPOCH", 30, "SOLVER.WARMUP_EPOCHS", 2.5]
BY_CLIPS = ["SOLVER.REFERENCE_BATCH_SIZE", 16]
BY_MACHINES = ["SOLVER.BASE_LR_SCALE_NUM_SHARDS", True]
ROOT_RULE = ["SOLVER.BATCH_RATE_RULE", "sqrt"]


def config(*overrides: object) -> Recipe:
    return load_recipe(None, [*RECIPE, *overrides])


def test_one_key_makes_a_recipe_shorter_once():
    """Scale 20 epochs with steps at 12 and 17 and a warm-up of 1 to a quarter of the length."""
    path = "configs/Demo/OWN_VIDEOS.yaml"
    short = load_recipe(path, ["SOLVER.LENGTH", 0.25])
    solver = short.solver
    assert (solver.max_epoch, solver.steps, solver.warmup_epochs) == (5, (0, 3, 4.25), 0.25)
    assert parse_recipe(short.text, "its text") == short


# Rates.


@pytest.mark.parametrize(
    ("keys", "growth"),
    [
        ([], 1),
        # The rates are for 16 clips, and follow the clips of all machines.
        (BY_CLIPS, 4),
        ([*BY_CLIPS, "NUM_SHARDS", 3], 12),
        ([*BY_CLIPS, *ROOT_RULE], 2),
        # 8 clips on one GPU in place of eight.
        ([*BY_CLIPS, "NUM_GPUS", 1, "TRAIN.BATCH_SIZE", 8], 1 / 2),
        # PySlowFast's later key: the rates are those of one machine.
        (BY_MACHINES, 1),
        ([*BY_MACHINES, "NUM_SHARDS", 4], 4),
        (["SOLVER.BASE_LR_SCALE_NUM_SHARDS", False, "NUM_SHARDS", 4], 1),
    ],
)
def test_all_rates_of_a_recipe_by_hand(keys, growth):
    recipe = config(*keys)
    assert recipe.train.batch_size == (8 if "TRAIN.BATCH_SIZE" in keys else 64)
    policy = learning_rate_of(recipe)
    rates = [policy.at(epoch) for epoch in (0, 2.5, 30)]
    assert rates == pytest.approx([growth * rate for rate in (0.08, 0.8, 0.008)], rel=0.02)
    # What is scaled once is not scaled again, nor when its text is read.
    assert scale_rates(recipe) == parse_recipe(recipe.text, "its text") == recipe


def test_a_launcher_with_other_machines_scales_as_the_recipe_would(monkeypatch):
    environment = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "6", "GROUP_WORLD_SIZE": "2"}
    for name, value in (
        environment | {"RANK": "4", "MASTER_ADDR": "first", "MASTER_PORT": "7"}
    ).items():
        monkeypatch.setenv(name, value)
    keys = [*BY_CLIPS, "NUM_GPUS", 3, "TRAIN.BATCH_SIZE", 24]
    scaled = resolve(config(*keys))
    assert (scaled.num_shards, scaled.world_size, scaled.base_shape.batch) == (2, 6, 48)
    assert scaled.solver.base_lr == pytest.approx(2.4)
    assert scaled == config(*keys, "NUM_SHARDS", 2, "SHARD_ID", scaled.shard_id)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([*BY_MACHINES, *BY_CLIPS], "would both scale the learning rates. Set .* 0"),
        (["SOLVER.BASE_LR_SCALE_NUM_SHARDS", 8], "NUM_SHARDS must be True or False, not 8"),
    ],
)
def test_a_later_key_that_contradicts_or_has_another_type_is_refused(keys, message):
    with pytest.raises(UserError, match=message):
        config(*keys)
