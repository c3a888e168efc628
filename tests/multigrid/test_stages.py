"""Schedules from tables of stages: hand-worked values, and tables that equal the cycles."""

from dataclasses import replace

import pytest

from multigrid import GENTLE, PAPER, CosineRate, Shape, Stage, SteppedRate, make_schedule

COARSE, FINE = Shape(32, 8, 32), Shape(8, 16, 64)
VIDEOS = 640
COOLDOWN = [
    Stage(COARSE, until=2, rate=(0.0, 0.4)),
    Stage(COARSE, until=4, rate=0.4),
    Stage(FINE, until=5, rate=(0.1, 0.0), bn_group_size=4),
]


def test_each_stage_ends_after_its_epochs_and_has_its_own_rate_and_bn_groups():
    """640 videos are 20 mini-batches of 32 clips, or 80 of 8."""
    schedule = make_schedule(FINE, VIDEOS, stages=COOLDOWN)
    assert [(p.start, p.stop, p.first_clip) for p in schedule.phases] == [
        (0, 40, 0),
        (40, 80, 1280),
        (80, 160, 2560),
    ]
    expected = {0: 0.0, 20: 0.2, 39: 0.39, 40: 0.4, 79: 0.4, 80: 0.1, 120: 0.05, 159: 0.00125}
    rates = {i: schedule.at(i).lr for i in expected}
    assert rates == pytest.approx(expected)
    assert [schedule.at(i).shape for i in (0, 79, 80)] == [COARSE, COARSE, FINE]
    assert [schedule.at(i).bn_group_size for i in (0, 79, 80)] == [8, 8, 4]
    assert schedule.epochs == 5
    assert schedule.clips == 5 * VIDEOS
    assert not any(phase.fine_tuning for phase in schedule.phases)


def test_a_stage_without_a_rate_follows_the_policy_at_the_epoch():
    policy = CosineRate(0.1, 4)
    stages = [Stage(COARSE, 2), Stage(FINE, 4, rate=0.5)]
    schedule = make_schedule(FINE, VIDEOS, policy, stages=stages)
    assert schedule.at(0).lr == 0.1
    assert schedule.at(20).lr == pytest.approx(policy.at(1))
    assert schedule.at(40).lr == 0.5


def test_the_shapes_of_a_stage_take_turns_and_bn_groups_grow_with_the_batch():
    shapes = (Shape(32, 8, 32), Shape(16, 8, 45), Shape(8, 8, 64))
    schedule = make_schedule(FINE, VIDEOS, stages=[Stage(shapes, until=6, rate=0.1)])
    assert [schedule.at(i).shape for i in range(4)] == [*shapes, shapes[0]]
    assert [schedule.at(i).bn_group_size for i in range(3)] == [32, 16, 8]


@pytest.mark.parametrize("cycles", [PAPER, GENTLE])
def test_a_table_of_the_phases_of_cycles_gives_the_same_schedule(cycles):
    """Each row has the shapes, the end in epochs and the constant rate of a phase."""
    base = Shape(8, 16, 64)
    policy = SteppedRate((12.0, 24.0, 30.0), (1.0, 0.1, 0.01))
    wanted = make_schedule(base, 4000, policy, cycles)
    stages = [
        Stage(
            p.shapes, (p.first_clip + p.clips) / 4000, wanted.at(p.start).lr, p.bn_group_sizes[-1]
        )
        for p in wanted.phases
    ]
    made = make_schedule(base, 4000, stages=stages)
    assert made.iterations == wanted.iterations
    for i in range(0, made.iterations, 7):
        ours, theirs = made.at(i), wanted.at(i)
        assert ours._replace(lr=0, lr_scale=0) == theirs._replace(lr=0, lr_scale=0)
        assert ours.lr == pytest.approx(theirs.lr)


STAGE = Stage(FINE, until=5, rate=0.1)


def test_a_stage_may_have_bn_groups_of_one_clip():
    schedule = make_schedule(FINE, VIDEOS, stages=[replace(STAGE, bn_group_size=1)])
    assert schedule.at(0).bn_group_size == 1


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ([], "at least one Stage"),
        ([STAGE, replace(STAGE, until=5.0)], "stage 2 of 2 ends at epoch 5, but starts at epoch 5"),
        ([replace(STAGE, until=0)], "stage 1 of 1 ends at epoch 0"),
        ([replace(STAGE, until=float("nan"))], "ends at epoch nan"),
        ([replace(STAGE, rate=None)], "has no rate"),
        ([replace(STAGE, rate=-0.1)], "has the rate -0.1"),
        ([replace(STAGE, rate=(0.1, 0.2, 0.3))], "has the rate"),
        ([replace(STAGE, rate="0.1")], "has the rate '0.1'"),
        ([replace(STAGE, shape=())], "has the shape ()"),
        ([replace(STAGE, shape=(8, 16, 64))], "Give a Shape"),
        ([replace(STAGE, bn_group_size=0)], "has bn_group_size 0"),
        ([replace(STAGE, bn_group_size=5)], "cannot be divided into BN groups of 5"),
        ([replace(STAGE, until=1e-3)], "has no iteration"),
    ],
)
def test_a_row_that_cannot_be_trained_is_named(stages, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(").replace(")", r"\)")):
        make_schedule(FINE, VIDEOS, stages=stages)


def test_arguments_that_stages_replace_are_refused():
    with pytest.raises(ValueError, match="takes only base, num_videos and learning_rate"):
        make_schedule(FINE, VIDEOS, cycles=PAPER, stages=COOLDOWN)
    with pytest.raises(ValueError, match="takes only base, num_videos and learning_rate"):
        make_schedule(FINE, VIDEOS, stages=COOLDOWN, bn_group_size=4)
    with pytest.raises(ValueError, match="ends at epoch 5, but the learning-rate policy ends at"):
        make_schedule(FINE, VIDEOS, CosineRate(0.1, 6), stages=COOLDOWN)
