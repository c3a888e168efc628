"""Schedules of recipes, and the recipe at an iteration."""

import math

import pytest

from multigrid import Schedule, Shape, SteppedRate
from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import (
    check_world_size,
    learning_rate_of,
    recipe_at,
    schedule_of,
)

RECIPE = ["TRAIN.BATCH_SIZE", 8, "DATA.NUM_FRAMES", 16, "DATA.TRAIN_CROP_SIZE", 64]
RECIPE += ["SOLVER.BASE_LR", 0.5, "SOLVER.STEPS", [0, 4, 8], "SOLVER.LRS", [1, 0.1, 0.01]]
RECIPE += ["SOLVER.MAX_EPOCH", 10, "SOLVER.WARMUP_EPOCHS", 0.0]
RECIPE += ["SOLVER.LR_POLICY", "steps_with_relative_lrs", "NUM_GPUS", 0]
BOTH = ["MULTIGRID.LONG_CYCLE", True, "MULTIGRID.SHORT_CYCLE", True]


def config(*overrides: object) -> Recipe:
    return load_recipe(None, [*RECIPE, *overrides])


def schedule(*overrides: object, videos: int = 800) -> Schedule:
    return schedule_of(config(*overrides), videos)


# Learning rates.


def test_steps_take_relative_rates_or_powers_of_gamma():
    policy = learning_rate_of(config("SOLVER.GAMMA", 0.5))
    assert isinstance(policy, SteppedRate)
    assert policy.ends == (4.0, 8.0, 10.0)
    assert policy.rates == pytest.approx((0.5, 0.05, 0.005))
    gamma = learning_rate_of(config("SOLVER.LRS", [], "SOLVER.GAMMA", 0.5))
    assert gamma.rates == (0.5, 0.25, 0.125)
    one = learning_rate_of(config("SOLVER.STEPS", [], "SOLVER.LRS", []))
    assert (one.ends, one.rates) == ((10.0,), (0.5,))


# Schedules.


def test_off_is_the_baseline_whatever_the_multigrid_keys_say():
    keys = ["MULTIGRID.EPOCH_FACTOR", 3.0, "MULTIGRID.BN_BASE_SIZE", 5]
    recipe = config(*keys, "MULTIGRID.SIZE_DIVISOR", 48)
    assert not recipe.uses_multigrid
    off = schedule_of(recipe, 800)
    assert off.shapes == (Shape(8, 16, 64),)
    assert off.iterations == off.baseline_iterations == 1000  # 10 epochs of 800 / 8
    assert {step.bn_size for step in off.steps()} == {None}
    rates = [off.at(i).lr for i in (0, 399, 400, 799, 800, 999)]
    assert rates == pytest.approx([0.5, 0.5, 0.05, 0.05, 0.005, 0.005])
    assert recipe_at(recipe, off, 0) == recipe_at(recipe, off, off.iterations - 1) == recipe


def test_both_cycles_have_the_papers_shapes_and_groups():
    both = schedule(*BOTH)
    assert [phase.base_shape for phase in both.phases[:4]] == [
        Shape(64, 4, 45),
        Shape(32, 8, 45),
        Shape(16, 8, 64),
        Shape(8, 16, 64),
    ]
    assert both.phases[3].shapes == (Shape(32, 16, 32), Shape(16, 16, 45), Shape(8, 16, 64))
    assert both.phases[3].bn_sizes == (32, 16, 8)
    assert len(both.phases) == 2 * 4 + 2  # two cycled stages, two halves of fine-tuning
    assert both.epochs == 15.0
    smooth = schedule(*BOTH, "SOLVER.LR_POLICY", "cosine", "SOLVER.STEPS", [])
    assert [phase.base_shape.batch for phase in smooth.phases] == [64, 32, 16, 8] * 3 + [8]


def test_the_recipes_own_factors_sizes_and_machines():
    factors = [[0.5, 0.5], [1, 1]]
    own = schedule(*BOTH, "MULTIGRID.LONG_CYCLE_FACTORS", factors, "MULTIGRID.BN_BASE_SIZE", 4)
    assert own.phases[0].base_shape == Shape(64, 8, 32)
    assert own.phases[0].bn_sizes[-1] == 4
    cropped = schedule("MULTIGRID.SHORT_CYCLE", True, "MULTIGRID.SHORT_CYCLE_FACTORS", [0.5])
    assert cropped.phases[0].shapes == (Shape(32, 16, 32), Shape(8, 16, 64))
    # 45 of 64 is nearest to 48: (64 / 48)² = 1.78, so 2 · 8 clips, and 4 times as many at T/4.
    sized = schedule(*BOTH, "MULTIGRID.SIZE_DIVISOR", 16)
    assert sized.phases[0].base_shape == Shape(64, 4, 48)
    assert sized.phases[0].bn_sizes == (16, 8, 8)
    assert config("NUM_SHARDS", 3).base_shape == Shape(24, 16, 64)
    assert schedule("NUM_SHARDS", 2).baseline_iterations == 500


def test_processes_that_cannot_train_a_schedule_are_told_which_can():
    recipe = config(*BOTH)
    check_world_size(recipe.replaced({"PROCESSES_PER_MACHINE": 4}), schedule(*BOTH))
    with pytest.raises(ValueError, match=r"TRAIN\.BATCH_SIZE 8, .*MULTIGRID\.BN_BASE_SIZE 8\)"):
        check_world_size(recipe.replaced({"PROCESSES_PER_MACHINE": 3}), schedule(*BOTH))


# The recipe at an iteration.


def test_the_recipe_at_an_iteration_is_that_of_the_long_cycles_shape():
    # 0.25 for 8 clips, of which there are 16: trained at 0.5, and read as a recipe so once.
    rates = ["SOLVER.BASE_LR", 0.25, "SOLVER.REFERENCE_BATCH_SIZE", 8]
    recipe = config(*BOTH, *rates, "NUM_SHARDS", 2, "SOLVER.WARMUP_START_LR", 0.01)
    text, run = recipe.text, schedule_of(recipe, 1600)
    found = []
    for phase in run.phases[:4]:
        for iteration in (phase.start, phase.start + 1, phase.stop - 1):
            at = recipe_at(recipe, run, iteration)
            found.append((at.train.batch_size, at.data.num_frames, at.data.train_crop_size))
            # The long cycle alone scales rates, linearly: 8, 4, 2, 1.
            factor = at.train.batch_size / 8
            assert math.isclose(at.solver.base_lr, 0.5 * factor)
            assert math.isclose(learning_rate_of(at).at(0), 0.5 * factor)
            assert math.isclose(at.solver.warmup_start_lr, 0.02 * factor)
        assert math.isclose(
            recipe_at(recipe, run, phase.start).solver.base_lr, run.at(phase.start).lr
        )
    by_phase = [(64, 4, 45), (32, 8, 45), (16, 8, 64), (8, 16, 64)]
    assert found == [shape for shape in by_phase for _ in range(3)]
    assert recipe.text == text
    with pytest.raises(IndexError):
        recipe_at(recipe, run, run.iterations)


# Batch normalisation.


def test_bn_of_a_baseline_is_left_to_each_process_unless_the_recipe_says_how_many_clips():
    assert not config().groups_batchnorm
    grouped = config("BN.GROUP_SIZE", 4)
    run = schedule_of(grouped, 800)
    assert grouped.groups_batchnorm
    assert {size for phase in run.phases for size in phase.bn_sizes} == {4}
    with pytest.raises(ValueError, match="BN groups of 3"):
        schedule_of(config("BN.GROUP_SIZE", 3), 800)
    fine_tuning = schedule(*BOTH, "BN.GROUP_SIZE", 4).phases[-1]
    assert fine_tuning.bn_sizes[-1] == 8  # with a cycle the cycle's own holds


@pytest.mark.parametrize(
    ("keys", "advice"),
    [
        (("MULTIGRID.SHORT_CYCLE", True), "set MULTIGRID.BN_BASE_SIZE 6"),
        (("BN.GROUP_SIZE", 8), "set BN.GROUP_SIZE 6"),
    ],
)
def test_a_batch_that_bn_groups_do_not_divide_names_the_keys(keys, advice):
    with pytest.raises(
        ValueError, match=r"12 clips \(TRAIN.BATCH_SIZE 12 .* BN groups of 8"
    ) as refused:
        schedule_of(load_recipe(None, ["TRAIN.BATCH_SIZE", 12, *keys]), 800)
    assert advice in str(refused.value)
    assert "TRAIN.BATCH_SIZE to a multiple of 8" in str(refused.value)
