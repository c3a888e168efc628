"""Recipes of TSM: lengths, the published model, and what it refuses."""

import pytest

from slowfast_patches.config import check_recipe, load_recipe
from tests.slowfast_patches.config.test_recipes import changes, load, paper_schedule
from tests.slowfast_patches.models.test_models import (
    CROPS,
    THIN,
    assert_same_as_host,
    assert_trains,
)
from tests.slowfast_patches.models.test_published_models import multiply_adds

TSM = "Kinetics/TSM_8x8_R50"
BOTH = {"MULTIGRID.LONG_CYCLE": True, "MULTIGRID.SHORT_CYCLE": True}


@pytest.mark.parametrize(
    ("name", "more"), [(TSM, {}), (f"{TSM}_1536GPU", {"MULTIGRID.WARMUP_IN_EPOCHS": False})]
)
def test_multigrid_is_two_lines_more_than_its_baseline(name, more):
    """TSM is not in the paper. The warm-up of the large batch is scaled like all other lengths."""
    assert changes(f"{name}_MULTIGRID", name) == BOTH | more


def test_the_iteration_factors_to_three_digits():
    """Cycled 4/5 of the time at 69/12 clips on average, fine-tuned 1/5 at 7/3: 76/15."""
    runs = [
        paper_schedule(load(f"{TSM}_MULTIGRID", "MULTIGRID.EPOCH_FACTOR", epochs))
        for epochs in (1.0, 1.5, 2.0)
    ]
    found = [round(run.baseline_iterations / run.iterations, 3) for run in runs]
    assert found == [5.067, 3.378, 2.533]


@pytest.mark.slow("counts the operations of whole networks")
def test_multiply_adds_of_a_clip_are_the_published_ones():
    """Lin, Gan and Han, ICCV 2019."""
    assert multiply_adds(load(TSM), 8, 224) == pytest.approx(32.9, rel=0.02)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["DATA.NUM_FRAMES", 1], "needs clips of 2 frames or more"),
        (["DATA.NUM_FRAMES", 4, "MULTIGRID.LONG_CYCLE", True], "change MULTIGRID.LONG_CYCLE_FAC"),
    ],
)
def test_a_shape_of_one_frame_is_refused(keys, said):
    recipe = load_recipe(None, ["NUM_GPUS", 0, "MODEL.ARCH", "tsm", *keys])
    with pytest.raises(ValueError, match=said):
        check_recipe(recipe)
    check_recipe(recipe.replaced({"TSM.SHIFT_DIV": 0}))


def test_the_share_has_no_effect_on_other_models(caplog):
    check_recipe(load_recipe(None, ["NUM_GPUS", 0, "TSM.SHIFT_DIV", 4]))
    assert "TSM.SHIFT_DIV 4 has no effect with MODEL.ARCH slowfast" in caplog.text


WITHOUT = (*THIN, "MODEL.ARCH", "tsm", "TSM.SHIFT_DIV", 0)


@pytest.mark.slow("trains a whole network")
def test_it_trains_at_every_shape():
    assert_trains(load_recipe(None, [*WITHOUT, *CROPS]))


def test_without_shifts_it_is_the_hosts_c2d_without_pooling():
    host = load_recipe(None, [*THIN, "MODEL.ARCH", "c2d_nopool"])
    assert_same_as_host(load_recipe(None, WITHOUT), host)


def test_the_share_is_stored_where_it_has_an_effect_although_it_is_the_default():
    assert "SHIFT_DIV: 8" in load_recipe(None, ["MODEL.ARCH", "tsm"]).text
    assert "SHIFT_DIV" not in load_recipe(None).text
    assert "SHIFT_DIV: 4" in load_recipe(None, ["TSM.SHIFT_DIV", 4]).text
