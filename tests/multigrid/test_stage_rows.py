"""Rows of MULTIGRID.STAGES: which are valid, and which stages they are."""

from __future__ import annotations

import pytest

from multigrid import MultigridError, Shape, Stage
from multigrid.stage_rows import are_rows, stages_from_rows


@pytest.mark.parametrize(
    ("change", "valid"),
    [
        ({}, True),
        ({"rate": 0}, True),
        ({"rate": [0.1, 0.0]}, True),
        ({"rate": -0.1}, False),
        ({"rate": "0.1"}, False),
        ({"rate": True}, False),
        ({"rate": float("inf")}, False),
        ({"rate": [0.1, -0.1]}, False),
        ({"rate": []}, False),
        ({"rate": [0.1]}, False),
        ({"rate": [1, 1, 1]}, False),
        ({"until": "5"}, False),
        ({"until": None}, False),
        ({"shape": [1, 1, 1]}, True),
        ({"shape": [0, 1, 1]}, False),
        ({"shape": [1, 1]}, False),
        ({"shape": [1, 1, 1.5]}, False),
        ({"other": 1}, False),
        ({"bn_group_size": 0}, True),
        ({"bn_group_size": -1}, False),
        ({"until": 0}, False),
        ({"shape": [[8, 4, 16], [4, 4, 24]]}, True),
        ({"shape": [[8, 4, 16]]}, True),
        ({"shape": [[8, 4, 16], [4, 4]]}, False),
        ({"shape": []}, False),
    ],
)
def test_what_a_row_of_a_table_of_stages_may_be(change, valid):
    row = {"shape": [8, 4, 16], "until": 5, **change}
    assert are_rows([row]) is valid
    assert are_rows(({"shape": (8, 4, 16), "until": 2.5}, row)) is valid


def test_a_row_needs_a_shape_and_an_end():
    assert not are_rows([{"shape": [8, 4, 16]}])
    assert not are_rows([{"until": 5}])


def test_ends_ascend_from_0():
    rows = [{"shape": [8, 4, 16], "until": until} for until in (0.5, 1, 1.5)]
    assert are_rows(rows)
    assert not are_rows([*rows, rows[-1]])
    assert not are_rows(rows[::-1])
    assert not are_rows({"shape": [8, 4, 16], "until": 1})
    assert not are_rows([7])


ROWS = [
    {"shape": [[16, 4, 16], [8, 4, 24]], "until": 2, "rate": [0.1, 0.4]},
    {"shape": [8, 4, 32], "until": 4, "bn_group_size": 4},
    {"shape": (4, 8, 32), "until": 6, "rate": 0.01, "bn_group_size": 0},
]
OPTIONS = {"machines": 2, "bn_group_size": 8, "end": 6, "has_cycles": False}


@pytest.mark.parametrize(
    ("bn_group_size", "sizes"), [(8, [8, 4, None]), (0, [None, 4, None]), (None, [None] * 3)]
)
def test_rows_are_stages_with_the_clips_of_all_machines(bn_group_size, sizes):
    """A row without a BN group size has the recipe's, and 0 means the clips of a process."""
    shapes = [
        (Shape(32, 4, 16), Shape(16, 4, 24)),
        (Shape(16, 4, 32),),
        (Shape(8, 8, 32),),
    ]
    ends_and_rates = [(2, (0.1, 0.4)), (4, None), (6, 0.01)]
    stages = stages_from_rows(ROWS, **OPTIONS | {"bn_group_size": bn_group_size})
    assert stages == tuple(
        Stage(shape, until, rate, size)
        for shape, (until, rate), size in zip(shapes, ends_and_rates, sizes, strict=True)
    )


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (
            ROWS,
            {"has_cycles": True},
            r"STAGES replaces the cycles\. Set MULTIGRID\.LONG_CYCLE False",
        ),
        (ROWS, {"end": 7}, r"ends at epoch 6, but SOLVER\.MAX_EPOCH is 7"),
        ([{"shape": [8, 4]}], {}, r"must be a list of rows such as .*, not \[\{'shape': \[8, 4\]"),
    ],
)
def test_rows_that_are_no_table_are_refused(rows, options, message):
    with pytest.raises(MultigridError, match=message):
        stages_from_rows(rows, **OPTIONS | options)


def test_no_rows_are_no_stages_whatever_the_cycles():
    assert stages_from_rows([], **OPTIONS | {"has_cycles": True, "end": 9}) == ()
