"""After which iterations a run evaluates and saves, and what that costs, worked out by hand."""

import pytest

from multigrid import PAPER, Cycles, Schedule, Shape, SteppedRate, make_schedule
from slowfast_patches.config.recipe import Recipe, default_recipe
from slowfast_patches.plan.evaluations import (
    checkpoint_iterations,
    epoch_ends,
    evaluation_iterations,
    evaluation_share,
    phase_ends,
)


@pytest.fixture
def schedule() -> Schedule:
    """Six phases of 6 iterations with 64, 32, 16, 8, 8, 8 clips: 816 clips, 6 epochs of 136."""
    policy = SteppedRate((4.0, 6.0), (0.1, 0.01))
    return make_schedule(Shape(8, 16, 64), 136, policy, Cycles(PAPER.long_cycle))


def config(**keys: object) -> Recipe:
    values = {key.replace("_", ".", 1): value for key, value in keys.items()}
    return default_recipe().replaced({"MULTIGRID.LONG_CYCLE": True, **values})


def test_the_long_cycle_evaluates_so_often_a_phase(schedule: Schedule):
    once, thrice = config(MULTIGRID_EVAL_FREQ=1), config(MULTIGRID_EVAL_FREQ=3)
    assert evaluation_iterations(once, schedule) == [6, 12, 18, 24, 30, 36]
    assert evaluation_iterations(thrice, schedule) == list(range(2, 37, 2))
    often = config(MULTIGRID_EVAL_FREQ=50)  # a phase has fewer iterations
    assert evaluation_iterations(often, schedule) == list(range(1, 37))


def test_without_the_long_cycle_evaluations_come_by_epochs():
    policy = SteppedRate((3.0,), (0.1,))
    schedule = make_schedule(Shape(8, 16, 64), 20, policy, cycles=None, bn_group_size=None)
    cfg = config(MULTIGRID_LONG_CYCLE=False, MULTIGRID_EVAL_FREQ=9, TRAIN_EVAL_PERIOD=1)
    # 60 clips by eights are 7 or 8 iterations; 20 clips are passed in the third, 40 by the fifth
    assert evaluation_iterations(cfg, schedule) == [3, 5, schedule.iterations]
    by_epochs = config(MULTIGRID_EVAL_FREQ=0, TRAIN_EVAL_PERIOD=2)
    assert evaluation_iterations(by_epochs, schedule) == [5, schedule.iterations]


def test_the_end_of_the_training_is_counted_once(schedule: Schedule):
    """Two and three epochs end with the six of the training, and four do not."""
    ends = {epochs: epoch_ends(epochs, schedule)[-2:] for epochs in (2, 3, 4, 6, 7)}
    # 544 clips are reached by the eleventh iteration, and 408 by the seventh.
    assert ends == {2: [11, 36], 3: [7, 36], 4: [11, 36], 6: [36], 7: [36]}


def _clips(frames: int, crop: int) -> float:
    """Training on a clip of the baseline's shape costs 3 FLOPs, and the forward pass costs 1."""
    return 3 * (frames / 16) * (crop / 64) ** 2


def test_the_share_of_evaluations_by_hand(schedule, tmp_path):
    """Six evaluations of 14 videos and a test of 10 videos. Evaluating a clip costs 1 FLOP."""
    (tmp_path / "val.csv").write_text("v.mp4 0\n" * 14)
    (tmp_path / "test.csv").write_text("v.mp4 0\n" * 10)
    data = {"DATA.PATH_TO_DATA_DIR": str(tmp_path), "TEST.NUM_SPATIAL_CROPS": 1}
    views = {"TEST.NUM_ENSEMBLE_VIEWS": 1, "DATA.NUM_FRAMES": 16, "DATA.TEST_CROP_SIZE": 64}
    recipe = config(MULTIGRID_EVAL_FREQ=1).replaced(data | views)
    count, share = evaluation_share(recipe, schedule, _clips)
    assert (count, share) == (6, pytest.approx((6 * 14 + 10) / (36 * 8 * 3), rel=0.01))


def test_checkpoints_come_after_each_period_of_epochs_and_each_phase(schedule: Schedule):
    ends = {6, 12, 18, 24, 30, 36}
    assert phase_ends(schedule) == ends
    # 272 clips are passed in the fifth iteration (320), 544 are reached by the eleventh. 680 are
    # reached by the first iteration of the fourth phase.
    for epochs, more in ((2, {5, 11}), (5, {19}), (100, set())):
        recipe = config(TRAIN_CHECKPOINT_PERIOD=epochs)
        assert checkpoint_iterations(recipe, schedule) == ends | more


def test_stages_evaluate_by_phases_like_the_long_cycle(schedule: Schedule):
    rows = ({"shape": (8, 16, 64), "until": 6.0, "rate": 0.1},)
    staged = config(MULTIGRID_LONG_CYCLE=False, MULTIGRID_STAGES=rows, MULTIGRID_EVAL_FREQ=1)
    assert evaluation_iterations(staged, schedule) == [6, 12, 18, 24, 30, 36]


@pytest.mark.parametrize(
    ("keys", "flops"),
    [
        # Six validations of 14 clips; without lists of tests there is none.
        ({}, 6 * 14),
        # Precise BN on 2 mini-batches of 8 clips before each.
        ({"BN.USE_PRECISE_STATS": True, "BN.NUM_BATCHES_PRECISE": 2}, 6 * (14 + 16)),
        ({"BN.USE_PRECISE_STATS": True, "BN.NUM_BATCHES_PRECISE": 1}, 6 * (14 + 8)),
        # No more mini-batches than the 136 videos have, 17.
        ({"BN.USE_PRECISE_STATS": True, "BN.NUM_BATCHES_PRECISE": 900}, 6 * (14 + 136)),
        # The average of the weights is evaluated as well.
        ({"MODEL.EMA_DECAY": 0.9}, 2 * 6 * 14),
        ({"DATA.TEST_CROP_SIZE": 128}, 6 * 14),
    ],
)
def test_what_an_evaluation_costs_by_hand(schedule, tmp_path, keys, flops):
    (tmp_path / "val.csv").write_text("v.mp4 0\n" * 14)
    values = {"DATA.PATH_TO_DATA_DIR": str(tmp_path), "BN.USE_PRECISE_STATS": False, **keys}
    recipe = config(MULTIGRID_EVAL_FREQ=1).replaced(values)
    trained = schedule.clips / 1
    _, share = evaluation_share(recipe, schedule, lambda frames, crop: 3.0)
    assert share == pytest.approx(flops / trained / 3)


@pytest.mark.parametrize(
    ("keys", "clips"),
    [
        ({}, 10 * 2 * 3),
        ({"TEST.ENABLE": False}, 0),
        ({"TEST.NUM_SPATIAL_CROPS": 1}, 10 * 2),
    ],
)
def test_what_a_test_costs_by_hand(schedule, tmp_path, keys, clips):
    """Clips of 32 frames and 128² pixels cost 8 times as much as those of the baseline."""
    (tmp_path / "test.csv").write_text("v.mp4 0\n" * 10)
    values = {"DATA.PATH_TO_DATA_DIR": str(tmp_path), "TEST.NUM_ENSEMBLE_VIEWS": 2}
    values |= {"DATA.NUM_FRAMES": 32, "DATA.TEST_CROP_SIZE": 128, "TEST.NUM_SPATIAL_CROPS": 3}
    recipe = config(MULTIGRID_EVAL_FREQ=1).replaced(values | keys)
    whole = sum(_clips(s.shape.frames, s.shape.crop) * s.shape.batch for s in schedule.steps())
    count, share = evaluation_share(recipe, schedule, _clips)
    assert (count, share) == (6, pytest.approx(8 * clips / whole))


def test_a_training_without_flops_has_no_share(schedule, tmp_path):
    (tmp_path / "val.csv").write_text("v.mp4 0\n")
    recipe = config().replaced({"DATA.PATH_TO_DATA_DIR": str(tmp_path)})
    assert evaluation_share(recipe, schedule, lambda frames, crop: 0.0)[1] == 0
