"""Rows of MULTIGRID.STAGES: the table of stages as plain data of a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isfinite
from typing import Any

from multigrid.errors import MultigridError
from multigrid.shapes import Shape
from multigrid.stages import Stage

Row = Mapping[str, Any]
"""Row of MULTIGRID.STAGES."""

ROWS_FORM = (
    "a list of rows such as {shape: [32, 8, 112], until: 10, rate: 0.1, bn_group_size: 8}. A shape "
    "is [clips, frames, crop] or a list of such shapes, the ends (until) ascend, and a rate is a "
    "number or [first, last]"
)
"""Text that says which values of MULTIGRID.STAGES are valid."""


def stages_from_rows(
    rows: Sequence[Row], *, machines: int, bn_group_size: int | None, end: float, has_cycles: bool
) -> tuple[Stage, ...]:
    """Return the stages of the rows of MULTIGRID.STAGES, with shapes over all machines.

    Args:
        rows: The rows.
        machines: Number of machines. The shapes of the rows have the clips of one machine.
        bn_group_size: BN group size of rows without one. 0 means all clips of a process. None
            means that the model has no batch normalisation, so the rows' sizes have no effect.
        end: SOLVER.MAX_EPOCH.
        has_cycles: Whether a cycle is on.

    Raises:
        ValueError: A row is invalid, a cycle is on as well, or the last stage does not end at
            SOLVER.MAX_EPOCH.
    """
    if not are_rows(rows):
        raise MultigridError(f"MULTIGRID.STAGES must be {ROWS_FORM}, not {rows}")
    if rows and has_cycles:
        raise MultigridError(
            "MULTIGRID.STAGES replaces the cycles. Set MULTIGRID.LONG_CYCLE False and "
            "MULTIGRID.SHORT_CYCLE False, or remove MULTIGRID.STAGES."
        )
    if rows and rows[-1]["until"] != end:
        raise MultigridError(
            f"the last row of MULTIGRID.STAGES ends at epoch {rows[-1]['until']:g}, but "
            f"SOLVER.MAX_EPOCH is {end:g}. Set both to the same value."
        )
    return tuple(_stage(row, machines, bn_group_size) for row in rows)


def _stage(row: Row, machines: int, bn_group_size: int | None) -> Stage:
    shapes = [Shape(clips * machines, frames, crop) for clips, frames, crop in row_shapes(row)]
    rate: Any = row.get("rate")
    return Stage(
        shape=tuple(shapes),
        until=row["until"],
        rate=tuple(rate) if is_list(rate) else rate,
        bn_group_size=None
        if bn_group_size is None
        else row.get("bn_group_size", bn_group_size) or None,
    )


def is_list(value: Any) -> bool:
    """Return whether a value of a recipe is a list or a tuple."""
    return isinstance(value, list | tuple)


def row_shapes(row: Row) -> list[Any]:
    """Return the shapes [clips, frames, crop] of a row."""
    shape = row["shape"]
    return list(shape) if is_list(shape) and shape and is_list(shape[0]) else [shape]


def are_rows(rows: Any) -> bool:
    """Return whether a value of MULTIGRID.STAGES has the form that ROWS_FORM describes."""
    if not is_list(rows) or not all(isinstance(row, Mapping) and _is_row(row) for row in rows):
        return False
    return all(a < b for a, b in pairwise([0, *(row["until"] for row in rows)]))


def _is_row(row: Row) -> bool:
    if not {"shape", "until"} <= row.keys() <= {"shape", "until", "rate", "bn_group_size"}:
        return False
    rate = row.get("rate", 0)
    rates = rate if is_list(rate) else [rate, rate]
    shapes = row_shapes(row)
    return (
        all(is_list(s) and len(s) == 3 and all(_is_whole(n, 1) for n in s) for s in shapes)
        and _is_number(row["until"])
        and len(rates) == 2
        and all(_is_number(r) and r >= 0 for r in rates)
        and _is_whole(row.get("bn_group_size", 0), 0)
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
