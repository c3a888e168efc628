"""The time left, worked out by hand."""

import pytest

from multigrid import Schedule, Shape, SteppedRate, make_schedule
from slowfast_patches.train.record.clock import Forecast

COARSE, HALF, BASE = Shape(32, 4, 32), Shape(16, 4, 45), Shape(4, 16, 32)


@pytest.fixture
def schedule() -> Schedule:
    """4 stages' worth of 10 iterations each: 16×4×32² twice as many clips as 8×8×32², and so on.

    Long cycle alone, factors (1/4, 1) and (1, 1): batches 32 and 8 in stage one, 8 in fine-tuning.
    """
    return make_schedule(
        Shape(8, 16, 32),
        num_videos=56,
        learning_rate=SteppedRate((2.0, 4.0), (0.1, 0.01)),
        epoch_factor=1.0,
        long_cycle=((0.25, 1.0), (1.0, 1.0)),
        short_cycle=(),
    )


def test_the_schedule_of_these_tests(schedule: Schedule):
    # 224 clips: n × (32 + 8) in stage one and 2n × 8 in fine-tuning give n = 4
    assert [(p.start, p.stop) for p in schedule.phases] == [(0, 4), (4, 8), (8, 12), (12, 16)]
    assert schedule.shapes == (Shape(32, 4, 32), Shape(8, 16, 32))


def test_nothing_is_known_before_the_first_iteration(schedule: Schedule):
    assert Forecast(schedule).remaining(0) == 0


def test_a_shape_not_met_yet_costs_what_its_pixels_say(schedule: Schedule):
    forecast = Forecast(schedule)
    forecast.observe(Shape(32, 4, 32), 2.0)
    forecast.observe(Shape(32, 4, 32), 4.0)
    # 3 s an iteration, and equal pixels: 14 iterations are left after 2
    assert forecast.remaining(2) == pytest.approx(42)


def test_each_shape_counts_with_its_own_time(schedule: Schedule):
    forecast = Forecast(schedule)
    forecast.observe(Shape(32, 4, 32), 3.0)
    forecast.observe(Shape(8, 16, 32), 1.0)
    # 2 of the first phase at 3 s, then 12 at 1 s; the shape at hand is not extrapolated
    assert forecast.remaining(2) == pytest.approx(2 * 3 + 12 * 1)
    assert forecast.remaining(14) == pytest.approx(2)
    assert forecast.remaining(16) == 0


def test_a_short_cycle_is_counted_shape_by_shape():
    policy = SteppedRate((3.0,), (0.1,))
    schedule = make_schedule(
        Shape(4, 8, 32), 28, policy, epoch_factor=1.0, long_cycle=(), short_cycle=(0.5, 0.75)
    )
    large, middle, small = schedule.shapes
    assert [s.batch for s in (large, middle, small)] == [16, 7, 4]
    assert schedule.iterations == 9  # 84 clips, 27 in a cycle
    forecast = Forecast(schedule)
    for shape, seconds in ((large, 1.0), (middle, 10.0), (small, 100.0)):
        forecast.observe(shape, seconds)
    # iteration i takes the (i mod 3)-rd: 4 to 8 are middle, small, large, middle, small
    assert forecast.remaining(4) == pytest.approx(2 * 10 + 2 * 100 + 1)
