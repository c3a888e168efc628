"""Recipes with augmentations: what is refused, what has no effect, and what changes a result."""

import pytest

from slowfast_patches.config import check_recipe, load_recipe
from slowfast_patches.config.recipe import KEYS
from slowfast_patches.plan.run_identity import RESULT, differences_between, run_identity
from slowfast_patches.registry import TaskSpec, register_task
from slowfast_patches.tasks.task import Task
from tests.slowfast_patches.plan.test_identity import named_changes, recipe

__all__ = ["recipe"]  # a fixture

ON = ("NUM_GPUS", 0, "AUG.ENABLE", True)
NOTHING = (*ON, "AUG.AA_TYPE", "", "AUG.COLOR_JITTER", 0, "AUG.RE_PROB", 0)


def test_without_any_augmentation_it_is_refused(caplog):
    with pytest.raises(ValueError, match="ENABLE True has no effect, because"):
        check_recipe(load_recipe(None, NOTHING))
    check_recipe(load_recipe(None, [*NOTHING, "AUG.RE_PROB", 0.1]))
    assert not caplog.records


def test_targets_of_parts_of_clips_are_not_augmented(own_folder):
    register_task("boxes", TaskSpec("boxes", scores_clips=False))(Task)
    keys = load_recipe(None, [*ON, "DATA.TASK", "boxes"])
    with pytest.raises(ValueError, match="augmentations do not transform boxes"):
        check_recipe(keys)
    check_recipe(keys.replaced({"AUG.ENABLE": False}))
    check_recipe(keys.replaced({"DATA.TASK": ""}))


@pytest.mark.parametrize("value", ["auto-m9", "rand-m11", "rand-n0", "rand-m9-mstd"])
def test_a_text_of_another_form_is_refused(value):
    with pytest.raises(ValueError, match="must be empty, or a text such as rand-m7"):
        load_recipe(None, ["AUG.AA_TYPE", value])


def test_an_augmentation_that_is_not_registered_is_refused():
    with pytest.raises(ValueError, match="must be a list of augmentations that modules"):
        load_recipe(None, ["AUG.CUSTOM", "unknown"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["NUM_GPUS", 0, "AUG.COLOR_JITTER", 0.5], "0.5 has no effect with AUG.ENABLE False"),
        ([*ON, "AUG.COLOR_JITTER", 0.5], "0.5 has no effect with AUG.AA_TYPE rand-m9"),
        ([*ON, "AUG.NUM_SAMPLE", 2], "An epoch always has one clip of each video"),
    ],
)
def test_what_has_no_effect_is_said_once(overrides, message, caplog):
    check_recipe(load_recipe(None, overrides))
    (record,) = caplog.records
    assert message in record.getMessage()


def test_each_key_is_named_where_it_differs(recipe):
    names = [name for name in KEYS if name.startswith("AUG.")]
    assert named_changes(recipe, names) == set(names)


def test_a_key_without_effect_is_no_difference(recipe):
    changed = recipe.replaced({"AUG.RE_PROB": 0.5})
    identities = [run_identity(each, clips=False) for each in (recipe, changed)]
    assert differences_between(*identities, RESULT) == {}
