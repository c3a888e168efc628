"""Schedules of recipes, and the recipe at an iteration."""

import math
from dataclasses import replace

import pytest

from multigrid import Cycles, Schedule, Shape, make_schedule
from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.recipe_cycles import (
    changed_keys,
    check_world_size,
    learning_rate_of,
    recipe_at,
)
from slowfast_patches.plan.recipe_schedule import schedule_of
from slowfast_patches.registry import MODELS
from slowfast_patches.utils.errors import UserError

RECIPE = ["TRAIN.BATCH_SIZE", 8, "DATA.NUM_FRAMES", 16, "DATA.TRAIN_CROP_SIZE", 64]
RECIPE += ["SOLVER.BASE_LR", 0.5, "SOLVER.STEPS", [0, 4, 8], "SOLVER.LRS", [1, 0.1, 0.01]]
RECIPE += ["SOLVER.MAX_EPOCH", 10, "SOLVER.WARMUP_EPOCHS", 0.0]
RECIPE += ["SOLVER.LR_POLICY", "steps_with_relative_lrs", "NUM_GPUS", 0]
BOTH = ["MULTIGRID.LONG_CYCLE", True, "MULTIGRID.SHORT_CYCLE", True]


def config(*overrides: object) -> Recipe:
    return load_recipe(None, [*RECIPE, *overrides])


def schedule(*overrides: object, videos: int = 800) -> Schedule:
    return schedule_of(config(*overrides), videos)


# Schedules.


def test_keys_are_the_arguments_of_the_schedule():
    keys = {
        "EPOCH_FACTOR": 2.0,
        "LONG_CYCLE_FACTORS": [[0.5, 0.5], [1, 1]],
        "SHORT_CYCLE_FACTORS": [0.5],
        "BATCH_EXPONENT": 0.5,
        "BN_BASE_SIZE": 4,
        "SIZE_DIVISOR": 16,
        "EQUAL_TIME": True,
        "WARMUP_IN_EPOCHS": False,
        "FINE_TUNING": False,
    }
    pairs = [word for key, value in keys.items() for word in (f"MULTIGRID.{key}", value)]
    recipe = config(*BOTH, "SOLVER.WARMUP_EPOCHS", 2, "NUM_SHARDS", 2, *pairs)
    options = {"size_divisor": 16, "equal_time": True, "fine_tuning": False}
    expected = make_schedule(
        Shape(16, 16, 64),
        800,
        learning_rate_of(recipe),
        Cycles(((0.5, 0.5), (1, 1)), (0.5,), 2.0, 0.5),
        bn_group_size=4,
        warmup_in_epochs=False,
        **options,
    )
    assert schedule_of(recipe, 800) == expected


def test_off_is_the_baseline_whatever_the_multigrid_keys_say():
    keys = ["MULTIGRID.EPOCH_FACTOR", 3.0, "MULTIGRID.BN_BASE_SIZE", 5]
    recipe = config(*keys, "MULTIGRID.SIZE_DIVISOR", 48)
    assert not recipe.uses_multigrid
    off = schedule_of(recipe, 800)
    rate = learning_rate_of(recipe)
    assert off == make_schedule(Shape(8, 16, 64), 800, rate, cycles=None, bn_group_size=None)
    assert recipe_at(recipe, off, 0) == recipe_at(recipe, off, off.iterations - 1) == recipe


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


def test_keys_that_change_at_a_phase_are_those_of_its_shape_and_rates():
    """Against the recipe, or against the phase before. The shapes are those of the long cycle."""
    recipe = config(*BOTH)
    run = schedule_of(recipe, 1600)
    starts = [phase.start for phase in run.phases]
    rates = "SOLVER.BASE_LR 2, SOLVER.WARMUP_START_LR 0.04"
    second = f"TRAIN.BATCH_SIZE 32, DATA.NUM_FRAMES 8, DATA.TRAIN_CROP_SIZE 45, {rates}"
    assert changed_keys(recipe, run, starts[1], None) == second
    same_crop = second.replace("DATA.TRAIN_CROP_SIZE 45, ", "")
    assert changed_keys(recipe, run, starts[1], starts[1] - 1) == same_crop
    assert changed_keys(recipe, run, starts[3], None) == "", "the baseline's shape"
    assert changed_keys(recipe, run, starts[0] + 1, starts[0]) == ""


# Batch normalisation.


def test_bn_of_a_baseline_is_left_to_each_process_unless_the_recipe_says_how_many_clips():
    assert not config().groups_batchnorm
    grouped = config("BN.GROUP_SIZE", 4)
    run = schedule_of(grouped, 800)
    assert grouped.groups_batchnorm
    assert {size for phase in run.phases for size in phase.bn_group_sizes} == {4}
    with pytest.raises(ValueError, match=r"BN groups of 3.*TRAIN.BATCH_SIZE to a multiple of 3"):
        schedule_of(config("BN.GROUP_SIZE", 3), 800)
    fine_tuning = schedule(*BOTH, "BN.GROUP_SIZE", 4).phases[-1]
    assert fine_tuning.bn_group_sizes[-1] == 8  # with a cycle the cycle's own holds


# Processes.


def check(*overrides: object) -> None:
    recipe = config(*overrides)
    check_world_size(recipe, schedule_of(recipe, 800))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["NUM_GPUS", 3], r"\(TRAIN.BATCH_SIZE 8, NUM_SHARDS 1, BN.GROUP_SIZE 0, SOLVER.ACC"),
        (
            ["SOLVER.ACCUMULATION_STEPS", 3, "BN.GROUP_SIZE", 4],
            r"2 BN groups .* micro-batches.*BN.GROUP_SIZE 4, SOLVER.ACCUMULATION_STEPS 3\)$",
        ),
        (["SOLVER.ACCUMULATION_STEPS", 2], "1 BN groups"),
    ],
)
def test_mini_batches_that_processes_cannot_share_are_refused_with_their_keys(keys, said):
    with pytest.raises(UserError, match=said):
        check(*keys)


def test_compiled_models_cannot_share_bn_groups_between_processes(monkeypatch):
    """8 clips on four GPUs are 2 on each, and 4 of them share statistics."""
    shared = ["NUM_GPUS", 4, "BN.GROUP_SIZE", 4]
    check(*shared)
    check("NUM_GPUS", 2, "BN.GROUP_SIZE", 4, "TRAIN.COMPILE", True)
    check("NUM_GPUS", 4, "TRAIN.COMPILE", True)
    said = r"not possible at 8×16×64²: a process has only 2 clips, so a BN group of 4 clips spans"
    with pytest.raises(UserError, match=said):
        check(*shared, "TRAIN.COMPILE", True)
    recipe = config(*shared, "TRAIN.COMPILE", True)
    run = schedule_of(recipe, 800)
    spec = replace(recipe.model.spec, has_batchnorm=False)
    monkeypatch.setitem(MODELS.entries, "slowfast", spec)
    check_world_size(recipe, run)
