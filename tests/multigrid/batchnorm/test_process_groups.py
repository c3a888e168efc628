"""Tests of which numbers of processes and micro-batches can train a schedule."""

from __future__ import annotations

from datetime import timedelta

import pytest

from multigrid import MultigridError, Phase, Schedule, Shape, SteppedRate
from multigrid.batchnorm import (
    check_accumulation,
    check_processes,
    form_groups,
    possible_processes,
    process_groups,
)

RATE = SteppedRate((16.0, 20.0), (0.1, 0.01))


def schedule_of(batches: list[tuple[int, int | None]]) -> Schedule:
    """Return a schedule of one phase with mini-batches of some clips and some BN group sizes."""
    shapes = tuple(Shape(batch, 8, 32) for batch, _ in batches)
    sizes = tuple(size for _, size in batches)
    phase = Phase(0, len(shapes), (0.0, 1.0), 0, 1.0, shapes, sizes, 0)
    return Schedule(shapes[-1], 50, 1.0, RATE, (phase,))


@pytest.mark.parametrize(
    ("batches", "possible"),
    [
        ([(12, 4)], [1, 3, 6, 12]),  # 12, 4, 2 and 1 clips; 3 and 6 clips would cut groups of 4
        ([(8, None)], [1, 2, 4, 8]),
        ([(32, 16), (16, 8)], [1, 2, 4, 8, 16]),
        ([(12, 4), (8, 8)], [1]),  # groups of 8 clips on 3 processes
        ([(6, 6)], [1, 2, 3, 6]),
    ],
)
def test_processes_divide_the_batch_and_neither_cut_a_group_nor_share_two(batches, possible):
    schedule = schedule_of(batches)
    assert possible_processes(schedule) == possible
    for processes in possible:
        check_processes(schedule, processes)
    with pytest.raises(ValueError, match=f"schedule: {', '.join(map(str, possible))}$"):
        check_processes(schedule, 5)


@pytest.mark.parametrize(
    ("batch", "size", "processes", "groups"),
    [
        (12, 4, 1, 3),
        (12, 4, 3, 1),
        (12, 4, 6, 1),  # three processes with 2 clips each, which are part of a group
        (12, None, 1, 1),  # all clips of a process
        (12, 1, 2, 6),
    ],
)
def test_each_micro_batch_needs_a_bn_group(batch, size, processes, groups):
    schedule = schedule_of([(99, 1), (batch, size)])
    check_accumulation(schedule, processes, groups)
    with pytest.raises(MultigridError, match=rf"{groups} BN groups .* at most {groups} micro-b"):
        check_accumulation(schedule, processes, groups + 1)


def test_without_batch_normalisation_each_micro_batch_needs_a_clip():
    schedule = schedule_of([(12, 4)])
    check_accumulation(schedule, 2, 6, has_batchnorm=False)
    with pytest.raises(MultigridError, match=r"6 clips on each of 2 process.* at most 6 micro-b"):
        check_accumulation(schedule, 2, 7, has_batchnorm=False)


@pytest.fixture
def formed(monkeypatch):
    """The groups that this process of four forms: (processes per group, timeout)."""
    formed = list[tuple[int, timedelta | None]]()
    monkeypatch.setattr(process_groups, "is_distributed", lambda: True)
    monkeypatch.setattr(process_groups.dist, "get_world_size", lambda: 4)
    monkeypatch.setattr(
        process_groups, "form_bn_process_groups", lambda *given: formed.append(given)
    )
    return formed


def test_all_groups_of_a_schedule_are_formed_in_one_order_on_all_processes(formed):
    """Groups of 16 clips are of four processes with 4 clips, or of two with 8."""
    minutes = timedelta(minutes=7)
    form_groups(schedule_of([(16, 16), (32, 16), (64, 16), (16, None)]), minutes)
    shared = [group for group in formed if group[0] > 1]
    assert shared == [(2, minutes), (4, minutes)]


def test_no_groups_are_formed_of_a_schedule_that_the_processes_cannot_train(formed):
    with pytest.raises(MultigridError, match="over 4 processes with BN groups of 3 clips"):
        form_groups(schedule_of([(16, 16), (12, 3), (6, 3)]))
    assert formed == []


def test_one_process_forms_no_groups(formed, monkeypatch):
    monkeypatch.setattr(process_groups, "is_distributed", lambda: False)
    form_groups(schedule_of([(6, 3)]))
    assert formed == []
