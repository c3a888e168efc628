"""Tests of the cost of a schedule, on a toy that is worked out by hand."""

from __future__ import annotations

import pytest

from multigrid import Cycles, Shape, SteppedRate, make_schedule, schedule_cost
from multigrid.cost import final_iterations

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
