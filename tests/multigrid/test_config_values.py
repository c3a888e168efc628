"""What the values of PySlowFast's keys mean for a schedule, worked out by hand."""

from __future__ import annotations

import pytest

from multigrid import (
    CosineRate,
    Cycles,
    MultigridError,
    Phase,
    SamplingOptions,
    Shape,
    SteppedRate,
    Warmup,
)
from multigrid.config_values import (
    base_shape,
    cycles_from,
    phase_evaluations,
    phase_keys,
    rate_from,
    schedule_from,
)

VALUES = {
    "TRAIN.BATCH_SIZE": 4,
    "NUM_SHARDS": 2,
    "DATA.NUM_FRAMES": 16,
    "DATA.TRAIN_CROP_SIZE": 64,
    "MULTIGRID.LONG_CYCLE": True,
    "MULTIGRID.SHORT_CYCLE": True,
    "MULTIGRID.LONG_CYCLE_FACTORS": [[0.5, 0.5], [1.0, 1.0]],
    "MULTIGRID.SHORT_CYCLE_FACTORS": [0.5],
    "MULTIGRID.EPOCH_FACTOR": 1.5,
    "MULTIGRID.BATCH_EXPONENT": 1.0,
    "MULTIGRID.KEEP_FIELD_OF_VIEW": False,
    "MULTIGRID.SIZE_DIVISOR": 1,
    "MULTIGRID.EQUAL_TIME": False,
    "MULTIGRID.WARMUP_IN_EPOCHS": True,
    "MULTIGRID.FINE_TUNING": True,
    "SOLVER.BATCH_RATE_RULE": "linear",
    "SOLVER.LR_POLICY": "steps_with_relative_lrs",
    "SOLVER.BASE_LR": 0.5,
    "SOLVER.STEPS": [0, 4, 8],
    "SOLVER.LRS": [1, 0.1, 0.01],
    "SOLVER.GAMMA": 0.2,
    "SOLVER.MAX_EPOCH": 10,
    "SOLVER.WARMUP_START_LR": 0.02,
    "SOLVER.WARMUP_EPOCHS": 2.0,
    "SOLVER.COSINE_END_LR": 0.003,
    "SOLVER.COSINE_AFTER_WARMUP": True,
}
WARMUP = Warmup(0.02, 2.0)


def value_of(**changes):
    """Return a function that returns the values above, with some keys changed by their names."""
    names = {name.rpartition(".")[2]: name for name in VALUES}
    return (VALUES | {names[name]: value for name, value in changes.items()}).__getitem__


def test_the_batch_is_that_of_all_machines():
    assert base_shape(value_of()) == Shape(8, 16, 64)


# Learning rates.


@pytest.mark.parametrize(
    ("changes", "ends", "rates"),
    [
        ({}, (4, 8, 10), (0.5, 0.05, 0.005)),  # multiples of 0.5
        ({"LR_POLICY": "steps_with_lrs"}, (4, 8, 10), (1, 0.1, 0.01)),
        # Without LRS, each rate is a fifth of the one before.
        ({"LRS": []}, (4, 8, 10), (0.5, 0.1, 0.02)),
        ({"LR_POLICY": "steps_with_lrs", "LRS": []}, (4, 8, 10), (0.5, 0.1, 0.02)),
        # No iteration comes after the last epoch.
        ({"MAX_EPOCH": 8}, (4, 8), (0.5, 0.05)),
        ({"MAX_EPOCH": 3}, (3,), (0.5,)),
        ({"STEPS": []}, (10,), (0.5,)),
    ],
)
def test_steps_by_hand(changes, ends, rates):
    policy = rate_from(value_of(**changes))
    assert isinstance(policy, SteppedRate)
    assert policy.ends == ends
    assert policy.rates == pytest.approx(rates)
    assert policy.warmup == WARMUP


def test_a_cosine_has_the_values_of_its_keys():
    policy = rate_from(value_of(LR_POLICY="cosine"))
    assert policy == CosineRate(0.5, 10.0, end=0.003, warmup=WARMUP, after_warmup=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"LR_POLICY": "poly"}, r"LR_POLICY poly is not supported\. Use cosine"),
        ({"STEPS": [1, 4, 8]}, r"SOLVER\.STEPS \[1, 4, 8\] must start with 0"),
        ({"LRS": [1, 0.1]}, r"SOLVER\.LRS \[1, 0\.1\] must have one value per step"),
    ],
)
def test_steps_and_policies_that_are_none_are_refused(changes, message):
    with pytest.raises(MultigridError, match=message):
        rate_from(value_of(**changes))


# Cycles.


@pytest.mark.parametrize(("long", "short"), [(True, True), (True, False), (False, True)])
def test_a_cycle_has_its_factors_if_it_is_on(long, short):
    assert cycles_from(value_of(LONG_CYCLE=long, SHORT_CYCLE=short)) == Cycles(
        long_cycle=((0.5, 0.5), (1.0, 1.0)) if long else (),
        short_cycle=(0.5,) if short else (),
        epoch_factor=1.5,
        sampling=SamplingOptions(keep_field_of_view=False),
    )


def test_without_a_cycle_the_schedule_is_the_baseline_s():
    """Its warm-up is the policy's. 800 videos in 10 epochs are 1000 mini-batches of 8 clips."""
    values = value_of(LONG_CYCLE=False, SHORT_CYCLE=False)
    assert cycles_from(values) is None
    schedule = schedule_from(values, 800, 0)
    assert (schedule.cycles, schedule.iterations) == (None, 1000)
    assert schedule.shapes == (Shape(8, 16, 64),)
    assert schedule.learning_rate == rate_from(values)


# Schedules.


def test_a_schedule_has_the_values_of_its_keys():
    """The first phase has 8 times the batch. Its short cycle changes nothing, at half the crop.

    After 1.5 × 10 epochs of 800 videos, 12,000 clips are trained. The warm-up ends after the
    second of these epochs.
    """
    schedule = schedule_from(value_of(), 800, 8)
    assert abs(schedule.clips - 12_000) <= 8
    first = schedule.phases[0]
    assert first.shapes == (Shape(64, 8, 32), Shape(64, 8, 32))
    assert (first.lr_scale, first.bn_group_sizes) == (8, (8, 8))
    last = schedule.first_iteration_after(2 * 800)
    assert schedule.at(last).lr == pytest.approx(8 * 0.5)
    assert schedule.at(last - 1).lr < 8 * 0.5
    assert schedule.phases[-1].fine_tuning
    assert schedule_from(value_of(), 800, 0).phases[0].bn_group_sizes == (None, None)


@pytest.mark.parametrize(
    ("changes", "rate", "shape"),
    [
        ({"BATCH_RATE_RULE": "sqrt"}, 8**0.5, Shape(64, 8, 32)),
        ({"BATCH_EXPONENT": 0.0}, 1, Shape(8, 8, 32)),
        ({"SIZE_DIVISOR": 48}, 2 * 2, Shape(32, 8, 48)),  # (64 / 48)² = 1.8, that is 2
    ],
)
def test_keys_that_change_the_first_phase(changes, rate, shape):
    first = schedule_from(value_of(**changes), 800, 8).phases[0]
    assert first.lr_scale == pytest.approx(rate)
    assert first.base_shape == shape


def test_keys_that_change_the_division_into_phases():
    def phases(**changes):
        return schedule_from(value_of(SHORT_CYCLE=False, **changes), 800, 8).phases

    # Equal times are equal numbers of pixels. 64 clips of 8 × 32² have as many as 8 of 16 × 64².
    paper, timed = phases(BATCH_EXPONENT=0.0), phases(BATCH_EXPONENT=0.0, EQUAL_TIME=True)
    assert paper[0].iterations == pytest.approx(paper[1].iterations, abs=2)
    assert timed[0].iterations == pytest.approx(8 * timed[1].iterations, rel=0.02)
    assert not any(phase.fine_tuning for phase in phases(FINE_TUNING=False))
    whole = schedule_from(value_of(WARMUP_IN_EPOCHS=False), 800, 8)
    assert whole.learning_rate.warmup == WARMUP, "of the baseline's training"


def test_a_learning_rate_and_a_cost_replace_those_of_the_keys():
    policy = SteppedRate((4.0, 10.0), (3.0, 0.3))
    schedule = schedule_from(value_of(), 800, 8, policy, lambda frames, crop: frames)
    assert schedule.at(schedule.iterations - 1).lr == pytest.approx(0.3)
    assert schedule.phases[0].base_shape == Shape(16, 8, 32), "half of the cost for each clip"


# Phases.

PHASE = Phase(
    100, 130, (0.0, 1.0), 0, 4.0, (Shape(64, 4, 32), Shape(32, 8, 48)), (8, 8), first_clip=0
)


def test_a_phase_as_keys_of_one_machine():
    assert phase_keys(PHASE, 2, value_of()) == {
        "TRAIN.BATCH_SIZE": 16,
        "DATA.NUM_FRAMES": 8,
        "DATA.TRAIN_CROP_SIZE": 48,
        "SOLVER.BASE_LR": 2.0,
        "SOLVER.WARMUP_START_LR": 0.08,
        "SOLVER.COSINE_END_LR": 0.012,
    }


@pytest.mark.parametrize(
    ("times", "after"),
    [
        (1, {130}),
        (3, {110, 120, 130}),
        (4, {108, 115, 122, 130}),  # 7.5, 15 and 22.5 iterations, rounded to even
        (90, set(range(101, 131))),  # a third of an iteration each, and not before the first
    ],
)
def test_a_phase_is_evaluated_at_equal_distances_and_at_its_end(times, after):
    assert phase_evaluations(PHASE, times) == after
