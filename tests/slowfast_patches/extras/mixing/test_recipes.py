"""Recipes with mixup: what is refused, what has no effect, and what changes a result."""

import pytest

from slowfast_patches.config import check_recipe, load_recipe
from slowfast_patches.config.recipe import KEYS
from slowfast_patches.plan.run_identity import RESULT, TRAINING, differences_between, run_identity
from slowfast_patches.registry import TaskSpec, register_task
from slowfast_patches.tasks.task import Task
from tests.slowfast_patches.plan.test_identity import named_changes, recipe
from tests.slowfast_patches.train.test_stepper import assert_same_in_parts

__all__ = ["recipe"]  # a fixture

ON = ("NUM_GPUS", 0, "MIXUP.ENABLE", True)


def test_without_both_alphas_it_is_refused():
    keys = load_recipe(None, [*ON, "MIXUP.ALPHA", 0, "MIXUP.CUTMIX_ALPHA", 0])
    with pytest.raises(ValueError, match="or set MIXUP"):
        check_recipe(keys)
    check_recipe(keys.replaced({"MIXUP.ALPHA": 0.1}))


def test_targets_of_parts_of_clips_are_not_blended(own_folder):
    register_task("boxes", TaskSpec("boxes", scores_clips=False))(Task)
    keys = load_recipe(None, [*ON, "DATA.TASK", "boxes"])
    with pytest.raises(ValueError, match="because boxes cannot be blended"):
        check_recipe(keys)
    check_recipe(keys.replaced({"MIXUP.ENABLE": False}))
    check_recipe(keys.replaced({"DATA.TASK": ""}))


def test_a_single_clip_has_no_pair(caplog):
    check_recipe(load_recipe(None, [*ON, "TRAIN.BATCH_SIZE", 1]))
    (record,) = caplog.records
    assert "no effect with a single clip in each micro" in record.getMessage()


def test_a_key_of_later_releases_is_named(caplog):
    load_recipe(None, [*ON, "MIXUP.LABEL_SMOOTH_VALUE", 0])
    assert not caplog.records
    load_recipe(None, [*ON, "MIXUP.LABEL_SMOOTH_VALUE", 0.1])
    assert "Set MODEL.LABEL_SMOOTHING." in caplog.text


def test_each_key_is_named_where_it_differs(recipe):
    names = [name for name in KEYS if name.startswith("MIXUP.")]
    assert named_changes(recipe, names) == set(names)


def test_a_key_without_effect_is_no_difference(recipe):
    changed = recipe.replaced({"MIXUP.ALPHA": 0.3})
    identities = [run_identity(each, clips=False) for each in (recipe, changed)]
    assert differences_between(*identities, RESULT) == {}


@pytest.mark.parametrize(("size", "matters"), [(5, True), (4, False)])
def test_the_division_into_processes_counts_if_pairs_are_divided(recipe, size, matters):
    keys = {"MULTIGRID.BN_BASE_SIZE": size, "MIXUP.ENABLE": True}
    runs = [recipe.replaced(keys | {"PROCESSES_PER_MACHINE": count}) for count in (1, 2)]
    before, after = (run_identity(run, clips=False) for run in runs)
    assert ("division" in differences_between(before, after, TRAINING)) is matters


def test_a_training_in_parts_is_the_training_in_one():
    assert_same_in_parts(MIXUP__ENABLE=True)
