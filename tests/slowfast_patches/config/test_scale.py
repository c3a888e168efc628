"""Scaling of recipes by hand: their length, and the batch and rates for a world size."""

import pytest

from slowfast_patches.config import load_recipe, parse_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.recipe_cycles import learning_rate_of
from slowfast_patches.config.scale import scale_to_world_size
from slowfast_patches.launch.launch import resolve

# 8 clips on each of 8 GPUs.
RECIPE = ["TRAIN.BATCH_SIZE", 64, "TEST.BATCH_SIZE", 32, "NUM_GPUS", 8]
RECIPE += ["SOLVER.BASE_LR", 0.8, "SOLVER.WARMUP_START_LR", 0.08, "SOLVER.COSINE_END_LR", 0.008]
RECIPE += ["SOLVER.MAX_EPOCH", 30, "SOLVER.WARMUP_EPOCHS", 2.5]
BY_GPUS = ["SOLVER.REFERENCE_WORLD_SIZE", 8]
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


# Batch and rates.


@pytest.mark.parametrize(
    ("keys", "batch", "growth"),
    [
        ([], 64, 1),
        # The batch follows the GPUs, 8 clips on each, and the rates the batch.
        (BY_GPUS, 64, 1),
        ([*BY_GPUS, "NUM_GPUS", 2], 16, 1 / 4),
        ([*BY_GPUS, "NUM_GPUS", 0], 8, 1 / 8),
        ([*BY_GPUS, "NUM_SHARDS", 2], 64, 2),
        ([*BY_GPUS, *ROOT_RULE, "NUM_GPUS", 2], 16, 1 / 2),
        # The rates follow the batch, from 16 clips, whatever made it.
        (BY_CLIPS, 64, 4),
        ([*BY_CLIPS, "NUM_SHARDS", 3], 64, 12),
        ([*BY_CLIPS, *ROOT_RULE], 64, 2),
        ([*BY_CLIPS, *BY_GPUS, "NUM_GPUS", 4, "NUM_SHARDS", 2], 32, 4),
        # PySlowFast's later key: the rates are those of one machine.
        ([*BY_MACHINES, "NUM_SHARDS", 4], 64, 4),
    ],
)
def test_batch_and_all_rates_of_a_recipe_by_hand(keys, batch, growth):
    recipe = config(*keys)
    assert recipe.train.batch_size == batch
    assert recipe.test.batch_size == batch // 2
    policy = learning_rate_of(recipe)
    rates = [policy.at(epoch) for epoch in (0, 2.5, 30)]
    assert rates == pytest.approx([growth * rate for rate in (0.08, 0.8, 0.008)], rel=0.02)
    # What is scaled once is not scaled again, nor when its text is read.
    assert scale_to_world_size(recipe) == parse_recipe(recipe.text, "its text") == recipe


def test_a_launcher_with_other_processes_scales_as_the_recipe_would(monkeypatch):
    environment = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "6", "GROUP_WORLD_SIZE": "2"}
    for name, value in (
        environment | {"RANK": "4", "MASTER_ADDR": "first", "MASTER_PORT": "7"}
    ).items():
        monkeypatch.setenv(name, value)
    scaled = resolve(config(*BY_GPUS, "NUM_GPUS", 3))
    assert (scaled.num_shards, scaled.train.batch_size) == (2, 24)
    assert scaled.world_size == 6
    assert scaled == config(*BY_GPUS, "NUM_GPUS", 3, "NUM_SHARDS", 2, "SHARD_ID", scaled.shard_id)


def test_a_batch_that_is_not_for_the_reference_is_refused():
    with pytest.raises(ValueError, match=r"BATCH_SIZE 60 is not divisible by .* 8. Set .* 64,"):
        config(*BY_GPUS, "TRAIN.BATCH_SIZE", 60)
