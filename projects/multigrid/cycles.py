"""The two named cycles, and a recommendation by the length of the training."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from multigrid.sampling import SamplingOptions
from multigrid.shapes import Factors

__all__ = ["GENTLE", "PAPER", "PAPER_ITERATIONS", "Cycles", "better_cycles", "recommend_cycles"]


@dataclass(frozen=True)
class Cycles:
    """How a multigrid training changes the shape of its mini-batch.

    To vary a named one, use `dataclasses.replace(multigrid.GENTLE, epoch_factor=1.0)`.

    Args:
        long_cycle: (t/T, h/H) of the long cycle's shapes, coarse to fine. If it is empty but there
            is a short cycle and the learning rate drops, the long cycle has one shape, the
            baseline's (paper §4.2).
        short_cycle: h/H of the short cycle's crops before the long cycle's own crop. Empty for no
            short cycle.
        epoch_factor: epochs as a multiple of the baseline's.
        batch_exponent: how much the batch grows on coarser grids (`scale_shape`). The paper's is 1.
        sampling: how the data set cuts clips from videos.
        name: name of a constant of this package. It is ignored when cycles are compared.
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
"""Cycles of the paper (§3.2), for long trainings.

Four shapes, a batch that grows by Equation 1, crops that may show less of a frame than the
baseline's, and 1.5 × the baseline's epochs.
"""

GENTLE = Cycles(
    long_cycle=((0.5, 0.5), (1.0, 0.5), (1.0, 1.0)),
    epoch_factor=0.75,
    batch_exponent=0.5,
    sampling=SamplingOptions(keep_field_of_view=True),
    name="GENTLE",
)
"""Cycles for short trainings.

At least half of the frames, a batch of 3 and then 2 times the baseline's, crops that show as much
of a frame as the baseline's, no short cycle, and 0.75 × the baseline's epochs.
"""

PAPER_ITERATIONS = 25_000
"""Least number of baseline iterations for which `PAPER` is recommended.

This threshold is still being measured. The shortest published training that gained with `PAPER` has
28,000 iterations (Charades). A training of 4,500 iterations on real video lost most of its accuracy
with it (projects/real_video/README.md).
"""


def recommend_cycles(baseline_iterations: float) -> Cycles:
    """Return the recommended cycles for a training of some length.

    Args:
        baseline_iterations: epochs × videos / batch of the baseline.
    """
    return PAPER if baseline_iterations >= PAPER_ITERATIONS else GENTLE


def better_cycles(cycles: Cycles | None, baseline_iterations: float) -> Cycles | None:
    """Return the recommended cycles if `cycles` are of the other kind, else None.

    Cycles whose batch grows by Equation 1 count as `PAPER`'s kind. Cycles with the long cycle of
    `GENTLE` and no short cycle count as its kind. There is no recommendation for other cycles, nor
    for the baseline (None).
    """
    if cycles is None:
        return None
    wanted = recommend_cycles(baseline_iterations)
    if wanted is PAPER:
        gentle = cycles.long_cycle == GENTLE.long_cycle and not cycles.short_cycle
        return PAPER if gentle else None
    return GENTLE if cycles.batch_exponent == PAPER.batch_exponent else None
