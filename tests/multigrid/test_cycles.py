"""Tests of `GENTLE` and `PAPER` by hand, and of which one is recommended for a training."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace

import pytest

from multigrid import (
    GENTLE,
    PAPER,
    SamplingOptions,
    Shape,
    SteppedRate,
    Training,
    make_schedule,
    recommend_cycles,
)

RATE = SteppedRate((8.0, 10.0), (0.1, 0.01))
BASE = Shape(8, 16, 64)


def test_gentle_by_hand():
    """The batch of 8 clips grows by √8 = 2.83 and √4, to 24 and 16. 7.5 epochs have 30,000 clips.

    The phases correspond to 8/3, 8/3, 8/3, 1 and 1 of 10 epochs.
    """
    schedule = make_schedule(BASE, 4000, RATE)
    assert schedule.cycles is GENTLE
    shapes = ["24×8×32²", "16×16×32²", *["8×16×64²"] * 3]
    assert [str(shape) for phase in schedule.phases for shape in phase.shapes] == shapes
    assert schedule.clips == 30_000
    part = 30_000 / ((24 + 16 + 8) * 8 / 3 + 16)
    wanted = [part * 8 / 3] * 3 + [part] * 2
    assert [p.iterations for p in schedule.phases] == pytest.approx(wanted, abs=2)
    assert [p.lr_scale for p in schedule.phases] == [3, 2, 1, 1, 1]
    assert GENTLE.sampling == SamplingOptions(keep_field_of_view=True)


@pytest.mark.parametrize(("batch", "sizes"), [(16, [8] * 3), (4, [4, 8, 4]), (2, [6, 4, 2])])
def test_bn_groups_of_gentle_divide_every_batch(batch, sizes):
    """Three times 4 clips cannot form groups of 8, but three groups of 4."""
    schedule = make_schedule(Shape(batch, 16, 64), 4000, RATE)
    assert [phase.bn_group_sizes[0] for phase in schedule.phases[:3]] == sizes


@pytest.mark.parametrize(
    ("cycles", "iterations", "better"),
    [
        (PAPER, 24_999, GENTLE),
        (PAPER, 25_000, None),
        (GENTLE, 24_999, None),
        (GENTLE, 25_000, PAPER),
        (replace(GENTLE, long_cycle=((0.5, 1.0), (1.0, 1.0))), 100, None),
        (replace(GENTLE, long_cycle=((0.5, 1.0), (1.0, 1.0))), 25_000, None),
        (replace(GENTLE, short_cycle=(0.5,)), 25_000, None),
        (None, 100, None),
    ],
)
def test_which_cycles_are_recommended(cycles, iterations, better):
    """One epoch of mini-batches of one clip."""
    made = make_schedule(Shape(1, 8, 64), iterations, SteppedRate((0.8, 1.0), (0.1, 0.01)), None)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        Training(replace(made, cycles=cycles))
    named = [re.search(r"make_schedule\(.*multigrid\.(\w+)\)", str(one.message))[1] for one in said]
    assert named == ([] if better is None else [better.name])
    assert recommend_cycles(iterations) is (PAPER if iterations >= 25_000 else GENTLE)
