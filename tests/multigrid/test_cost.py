"""Tests of the cost of a schedule, on a toy that is worked out by hand."""

from __future__ import annotations

import pytest

from multigrid import (
    Cost,
    Cycles,
    Phase,
    Schedule,
    Shape,
    SteppedRate,
    baseline_cost,
    make_schedule,
    schedule_cost,
)
from multigrid.cost import final_iterations, fine_tuning_warnings

RATE = SteppedRate((2.0, 3.0), (0.1, 0.01))


def pixels(frames: int, crop: int) -> float:
    """Return the FLOPs of a model that spends one on each pixel."""
    return frames * crop**2


@pytest.fixture(scope="module")
def short_cycle():
    """Return a schedule of 4 × 8 × 16² with crops of 8² in turn: 16, 4, 16, 4, ... clips."""
    return make_schedule(Shape(4, 8, 16), 40, RATE, Cycles((), (0.5,)), bn_group_size=None)


def test_the_toy_by_hand(short_cycle):
    """120 clips are 6 short cycles of 20. Two thirds of the 12 iterations precede fine-tuning."""
    cost = schedule_cost(short_cycle, pixels)
    assert (cost.iterations, cost.clips, cost.epochs) == (12, 120, 3)
    # Every mini-batch has the pixels of the baseline's: 16 × 8 × 8² = 4 × 8 × 16² = 8192.
    assert cost.flops == 12 * 8192
    assert [phase.iterations for phase in short_cycle.phases] == [8, 2, 2]
    costs = [schedule_cost(short_cycle, pixels, phases=[phase]) for phase in short_cycle.phases]
    assert [cost.flops for cost in costs] == [8 * 8192, 2 * 8192, 2 * 8192]
    assert final_iterations(short_cycle) == 12


def test_what_follows_the_last_coarse_shape():
    """The long cycle has two thirds of 30 iterations, half of them coarse. All have B clips."""
    cycles = Cycles(((0.5, 1.0), (1.0, 1.0)), batch_exponent=0)
    schedule = make_schedule(Shape(4, 8, 16), 40, RATE, cycles)
    assert [phase.iterations for phase in schedule.phases] == [10, 10, 5, 5]
    assert final_iterations(schedule) == 20


def seconds(shape: Shape) -> float:
    """Return a step time of half a second and 10 ms for each clip."""
    return 0.5 + shape.batch / 100


def test_the_cost_of_the_baseline_by_hand(short_cycle):
    """Three epochs of 40 clips are 30 mini-batches of 4 clips with 8192 pixels, each in 0.54 s."""
    assert baseline_cost(short_cycle) == Cost(30, 3.0, 120)
    assert baseline_cost(short_cycle, pixels, seconds) == Cost(
        30, 3.0, 120, 30 * 8192, pytest.approx(30 * 0.54)
    )


def test_the_time_of_each_shape_counts(short_cycle):
    """Six mini-batches have 16 clips, and six have 4."""
    cost = schedule_cost(short_cycle, None, seconds)
    assert cost == Cost(12, 3.0, 120, None, pytest.approx(6 * 0.66 + 6 * 0.54))


def ending(coarse: int, fine: int) -> Schedule:
    """Return a schedule of some iterations at half the crop and some at the baseline's shape."""
    base = Shape(4, 8, 16)
    stops = ((0, coarse, Shape(4, 8, 8)), (coarse, coarse + fine, base))
    phases = [
        Phase(start, stop, (0.0, 1.0), 0, 1.0, (shape,), (None,), 4 * start)
        for start, stop, shape in stops
        if stop > start
    ]
    return Schedule(base, 40, 1.0, RATE, tuple(phases))


@pytest.mark.parametrize(
    ("coarse", "fine", "is_warned"),
    [(10, 99, True), (10, 100, False), (10, 101, False), (0, 20, False), (0, 200, False)],
)
def test_too_few_iterations_at_the_shape_of_the_baseline_are_warned_of(coarse, fine, is_warned):
    texts = fine_tuning_warnings(ending(coarse, fine))
    assert len(texts) == is_warned
    assert all(f"ends with {fine} iterations" in text for text in texts)
