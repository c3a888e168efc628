"""The two cycles that were measured, and which of them fits a training of a given length."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from multigrid.sampling import SamplingOptions
from multigrid.shapes import Factors

__all__ = ["GENTLE", "PAPER", "PAPER_ITERATIONS", "Cycles", "better_cycles", "recommend_cycles"]


@dataclass(frozen=True)
class Cycles:
    """How a multigrid training changes the shape of its mini-batch.

    Vary a named one with `dataclasses.replace(multigrid.GENTLE, epoch_factor=1.0)`.

    Args:
        long_cycle: (t/T, h/H) of the long cycle's shapes, coarse to fine. If empty, with a short
            cycle and a rate that drops, it is one shape, the baseline's (paper §4.2).
        short_cycle: h/H of the short cycle's crops before the long cycle's own; empty for none.
        epoch_factor: epochs as a multiple of the baseline's.
        batch_exponent: how much the batch grows on coarser grids (`scale_shape`; paper: 1).
        sampling: how clips are cut from videos, for the data set.
        name: of a constant of this package; two cycles of other names may be equal.
    """

    long_cycle: tuple[Factors, ...] = ()
    short_cycle: tuple[float, ...] = ()
    epoch_factor: float = 1.0
    batch_exponent: float = 1.0
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    name: str = field(default="", compare=False)


PAPER = Cycles(
    long_cycle=(
        (1 / 4, math.sqrt(1 / 2)),
        (1 / 2, math.sqrt(1 / 2)),
        (1 / 2, 1.0),
        (1.0, 1.0),
    ),
    short_cycle=(1 / 2, math.sqrt(1 / 2)),
    epoch_factor=1.5,
    batch_exponent=1.0,
    sampling=SamplingOptions(keep_field_of_view=False),
    name="PAPER",
)
"""The cycles of the paper (§3.2), for long trainings: four shapes, the batch by Equation 1, crops
that may show less of a frame, 1.5 × the epochs."""

GENTLE = Cycles(
    long_cycle=((0.5, 0.5), (1.0, 0.5), (1.0, 1.0)),
    epoch_factor=0.75,
    batch_exponent=0.5,
    sampling=SamplingOptions(keep_field_of_view=True),
    name="GENTLE",
)
"""Cycles for short trainings: at least half of the frames, a batch that grows by 3 and 2, crops
that show as much of a frame as the baseline's, no short cycle, 0.75 × the epochs."""

PAPER_ITERATIONS = 25_000
"""Iterations of the baseline from which on `PAPER` is recommended.

Being measured. The shortest published training that gained with it has 28,000 (Charades). Of 4,500
on real video it lost most of the accuracy (projects/real_video/README.md)."""


def recommend_cycles(baseline_iterations: float) -> Cycles:
    """Return the cycles that fit the length of a training.

    Args:
        baseline_iterations: epochs × videos / batch of the baseline.
    """
    return PAPER if baseline_iterations >= PAPER_ITERATIONS else GENTLE


def better_cycles(cycles: Cycles | None, baseline_iterations: float) -> Cycles | None:
    """Return the recommended cycles if `cycles` are of the other kind.

    Of `PAPER`'s kind are all whose batch grows by Equation 1, and of `GENTLE`'s those with its
    shapes. Others are the user's own, and None stands for the baseline: both are left alone.
    """
    if cycles is None:
        return None
    wanted = recommend_cycles(baseline_iterations)
    if wanted is PAPER:
        gentle = cycles.long_cycle == GENTLE.long_cycle and not cycles.short_cycle
        return PAPER if gentle else None
    return GENTLE if cycles.batch_exponent == PAPER.batch_exponent else None
