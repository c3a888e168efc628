"""The schedule: published numbers, hand-worked values, and the properties any schedule has."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from multigrid import PAPER, CosineRate, Cycles, Shape, SteppedRate, Warmup
from multigrid import make_schedule as schedule_of_cycles

quick = settings(max_examples=25, deadline=None, derandomize=True)

# The recipe that most tests use: 8 clips, 4000 videos (500 iterations an epoch), three LR stages.
BASE = Shape(8, 16, 64)
VIDEOS = 4000
RATE = SteppedRate((12.0, 24.0, 30.0), (1.0, 0.1, 0.01))
OFF = {"long_cycle": (), "short_cycle": ()}
LONG_CYCLE = PAPER.long_cycle
SHORT_CYCLE = PAPER.short_cycle


def make_schedule(*arguments, **options):
    """Make a schedule of the paper's cycles; options that are fields of `Cycles` vary these."""
    names = {field.name for field in fields(Cycles)} & set(options)
    cycles = replace(PAPER, **{name: options.pop(name) for name in names})
    return schedule_of_cycles(*arguments, cycles=cycles, **options)


@pytest.fixture(scope="module")
def both():
    return make_schedule(BASE, VIDEOS, RATE)


def stepped(ends):
    return SteppedRate(ends, tuple(0.1**j for j in range(len(ends))))


@st.composite
def recipes(draw):
    """Draw arguments of `make_schedule` of every kind; a few are too short for a schedule."""
    base = Shape(
        draw(st.integers(1, 64)),
        draw(st.sampled_from([4, 8, 16, 30, 32, 64])),
        draw(st.integers(32, 352)),
    )
    lengths = draw(st.lists(st.floats(0.5, 50), min_size=2, max_size=5))
    rate = draw(
        st.sampled_from(
            [stepped(tuple(sum(lengths[: j + 1]) for j in range(len(lengths)))), CosineRate(1, 40)]
        )
    )
    long_cycle, short_cycle = draw(
        st.sampled_from([(LONG_CYCLE, SHORT_CYCLE), (LONG_CYCLE, ()), ((), SHORT_CYCLE), ((), ())])
    )
    factor = draw(st.floats(0.3, 3)) if long_cycle or short_cycle else 1
    return {
        "base": base,
        "num_videos": draw(st.integers(1, 2000)) * base.batch + draw(st.integers(0, 7)),
        "learning_rate": rate,
        "epoch_factor": factor,
        "long_cycle": long_cycle,
        "short_cycle": short_cycle,
        "bn_group_size": None,
        "batch_exponent": draw(st.sampled_from([1, 0.5, 0])),
        "equal_time": draw(st.booleans()),
        "warmup_in_epochs": draw(st.booleans()),
        "fine_tuning": draw(st.booleans()),
    }


def schedule_or_skip(recipe):
    try:
        return make_schedule(**recipe)
    except ValueError as error:
        assume("too short" not in str(error))
        raise


# Properties.


@quick
@given(recipes(), st.data())
def test_phases_tile_the_training_and_its_clips(recipe, data):
    schedule = schedule_or_skip(recipe)
    phases, end = schedule.phases, recipe["learning_rate"].stage_ends[-1]
    wanted = recipe["epoch_factor"] * end * recipe["num_videos"]
    assert abs(schedule.clips - wanted) <= max(shape.batch for shape in phases[-1].shapes)
    assert schedule.epochs * schedule.num_videos == pytest.approx(wanted)
    assert phases[0].start == phases[0].first_clip == 0
    assert all(a.start < a.stop == b.start for a, b in pairwise(phases))
    assert phases[-1].start < phases[-1].stop == schedule.iterations
    parts = [phase.baseline_epochs for phase in phases]
    assert all(a[1] == b[0] for a, b in pairwise(parts))
    assert (parts[0][0], parts[-1][1]) == (0, end)
    for index, phase in enumerate(phases):
        assert schedule.phase_at(phase.start) == schedule.phase_at(phase.stop - 1) == index
        run = [*schedule.steps(max(0, phase.start - 4), min(phase.start + 4, phases[-1].stop))]
        for step, following in pairwise(run):
            assert following.first_clip == step.first_clip + step.shape.batch
    last = schedule.at(schedule.iterations - 1)
    assert last.first_clip + last.shape.batch == schedule.clips
    clips = data.draw(st.floats(0, 1.2)) * schedule.clips
    first = schedule.first_iteration_after(clips)
    assert first == schedule.iterations or schedule.at(first).first_clip >= clips
    assert first == 0 or schedule.at(first - 1).first_clip < clips


# The paper's schedule, by hand.


def test_phases_of_both_cycles(both):
    expected = [(64, 4, 45), (32, 8, 45), (16, 8, 64), (8, 16, 64)]
    assert [phase.base_shape for phase in both.phases] == [
        Shape(*sizes) for sizes in [*expected, *expected, expected[3], expected[3]]
    ]
    assert [phase.stage for phase in both.phases] == [0] * 4 + [1] * 4 + [2] * 2
    assert [phase.fine_tuning for phase in both.phases] == [False] * 8 + [True] * 2
    assert [phase.lr_scale for phase in both.phases] == [8, 4, 2, 1, 8, 4, 2, 1, 1, 1]
    assert [phase.baseline_epochs for phase in both.phases] == [
        (0, 3), (3, 6), (6, 9), (9, 12), (12, 15), (15, 18), (18, 21), (21, 24), (24, 27), (27, 30)
    ]  # fmt: skip


def test_every_iteration_has_the_crop_and_the_rate_of_its_phase(both):
    """The rate is the factor times the baseline's. The last drop is halfway through fine-tuning."""
    rates = [8, 4, 2, 1, 0.8, 0.4, 0.2, 0.1, 0.1, 0.01]
    for step in both.steps():
        own = both.phases[step.phase].base_shape
        assert step.shape.crop == (32, 45, own.crop)[step.iteration % 3]
        assert step.shape.frames == own.frames
        assert step.lr == pytest.approx(rates[step.phase])
    assert both.at(3).epoch == pytest.approx((128 + 64 + 64) / VIDEOS)


def test_warmup_is_scaled_with_the_long_cycle():
    """Half-way through a phase of baseline epochs 3 to 6, the baseline is at epoch 4.5."""
    rate = SteppedRate(RATE.ends, RATE.rates, Warmup(start=0.1, epochs=9))
    schedule = make_schedule(BASE, VIDEOS, rate)
    assert schedule.at(0).lr == pytest.approx(8 * 0.1)
    phase = schedule.phases[1]
    middle = schedule.at((phase.start + phase.stop) // 2)
    assert middle.lr == pytest.approx(4 * 0.55, rel=0.01)
    assert schedule.at(schedule.phases[3].start).lr == pytest.approx(1.0)


@pytest.mark.parametrize("exponent", [1, 0.5, 0])
def test_warmup_in_epochs_ends_after_as_many_passes(exponent):
    """The warm-up ends after exactly two passes over 4000 videos, with the rate of the phase."""
    rate = SteppedRate(RATE.ends, RATE.rates, Warmup(start=0.1, epochs=2))
    schedule = make_schedule(
        BASE, VIDEOS, rate, warmup_in_epochs=True, batch_exponent=exponent, short_cycle=()
    )
    last = schedule.first_iteration_after(2 * VIDEOS)
    scale = schedule.phases[0].lr_scale
    assert schedule.at(last).lr == pytest.approx(scale)
    assert scale * 0.99 < schedule.at(last - 1).lr < scale
    assert schedule.at(0).lr == pytest.approx(scale * 0.1)


def test_a_warmup_that_is_longer_than_the_training_keeps_its_share():
    """A tenth of 30 epochs is not the 4 epochs of the warm-up."""
    rate = SteppedRate(RATE.ends, RATE.rates, Warmup(start=0.1, epochs=4))
    options = {"epoch_factor": 0.1, "bn_group_size": None}
    made = make_schedule(BASE, VIDEOS, rate, warmup_in_epochs=True, **options)
    assert made == make_schedule(BASE, VIDEOS, rate, **options)


def test_without_fine_tuning_the_last_stage_is_a_cycle_at_its_own_rate():
    """The last stage, epochs 24 to 30, has four shapes of 1.5 epochs each.

    Mini-batches are 69/12 = 5.75 times the baseline's on average, so 1.5 × 15,000 iterations of 8
    clips become 1.5 × 15,000 / 5.75.
    """
    schedule = make_schedule(BASE, VIDEOS, RATE, fine_tuning=False)
    last = schedule.phases[8:]
    assert [phase.base_shape.batch for phase in last] == [64, 32, 16, 8]
    assert (last[0].baseline_epochs, last[-1].baseline_epochs) == ((24, 25.5), (28.5, 30))
    rates = [schedule.at(phase.start).lr for phase in last]
    assert rates == pytest.approx([0.08, 0.04, 0.02, 0.01])
    assert schedule.iterations == pytest.approx(1.5 * 15_000 / 5.75, rel=1e-3)


def test_bn_group_sizes(both):
    """A group has 8 clips, or 16 or 32 where the short cycle multiplies the batch by 2 or 4."""
    assert both.phases[0].bn_group_sizes == both.phases[1].bn_group_sizes == (16, 8, 8)
    assert both.phases[2].bn_group_sizes == both.phases[3].bn_group_sizes == (32, 16, 8)
    assert both.at(1).bn_group_size == 8
    small = make_schedule(Shape(4, 16, 64), VIDEOS, RATE)  # a batch of 4 is its own group
    assert [small.phases[i].bn_group_sizes for i in (0, 3)] == [(16, 8, 8), (16, 8, 4)]
    assert make_schedule(BASE, VIDEOS, RATE, bn_group_size=None).at(0).bn_group_size is None


# One cycle, none, cosine.


@pytest.mark.parametrize(
    "policy", [CosineRate(0.1, 10), SteppedRate(RATE.ends, RATE.rates, Warmup(0.01, 3))]
)
def test_off_is_the_baseline(policy):
    """Iteration i is at epoch i / 25 of the baseline's policy."""
    schedule = make_schedule(
        BASE, 25 * BASE.batch, policy, epoch_factor=1, bn_group_size=None, **OFF
    )
    assert schedule.iterations == schedule.baseline_iterations == 25 * policy.stage_ends[-1]
    for step in schedule.steps():
        where = (step.shape, step.bn_group_size, step.first_clip)
        assert where == (BASE, None, step.iteration * BASE.batch)
        assert step.lr == pytest.approx(policy.at(step.iteration / 25), rel=1e-12)


def test_cycles_on_a_cosine():
    schedule = make_schedule(BASE, VIDEOS, CosineRate(1.0, 30))
    assert [phase.stage for phase in schedule.phases] == [0] * 4 + [1] * 4 + [2] * 4 + [3]
    assert [phase.lr_scale for phase in schedule.phases] == [8, 4, 2, 1] * 3 + [1]
    assert [phase.fine_tuning for phase in schedule.phases] == [False] * 12 + [True]
    shares = [phase.iterations / schedule.iterations for phase in schedule.phases]
    assert shares == pytest.approx([0.8 / 12] * 12 + [0.2], abs=0.001)
    # The fine-tuning phase starts at 4/5 of the way: (1 + cos 144°) / 2.
    assert schedule.at(schedule.phases[-1].start).lr == pytest.approx(0.0954915)
    # The second cycle starts at 4/15 of the way, (1 + cos 48°) / 2, on eight times the batch.
    assert schedule.at(schedule.phases[4].start).lr == pytest.approx(8 * 0.8345653)


# Keyword arguments.


@pytest.mark.parametrize(("size", "batch"), [(4, 12), (None, 8), (2, 10)])
def test_a_batch_of_equal_cost_has_whole_bn_groups_or_eight_clips(size, batch):
    """A clip of 16 frames costs 60, and one of 8 frames 48. So 10 clips cost as much as 8."""

    def cost(frames: int, crop: int) -> float:
        return 1.5 * frames + 36

    cycles = Cycles(((0.5, 1.0), (1.0, 1.0)))
    made = schedule_of_cycles(BASE, VIDEOS, RATE, cycles, bn_group_size=size, cost_per_clip=cost)
    assert made.phases[0].base_shape == Shape(batch, 8, 64)


def test_a_bn_group_may_have_one_clip():
    assert make_schedule(BASE, VIDEOS, RATE, bn_group_size=1).at(1).bn_group_size == 1


# What cannot be scheduled.


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_videos": 0}, "too short: with 0 clips"),
        ({"learning_rate": SteppedRate((10.0,), (0.1,))}, "has one stage"),
        ({"learning_rate": 0.1}, "learning_rate is 0.1, but must be a policy"),
        ({"bn_group_size": 0}, "bn_group_size is 0"),
        ({"base": Shape(12, 16, 64)}, "cannot be divided into BN groups of 8"),
    ],
)
def test_what_cannot_be_scheduled(wrong, message):
    arguments = {"base": BASE, "num_videos": VIDEOS, "learning_rate": RATE, **wrong}
    with pytest.raises(ValueError, match=message):
        make_schedule(**arguments)
