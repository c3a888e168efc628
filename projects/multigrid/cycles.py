"""Settings of the long and short cycles: `PAPER`, `GENTLE`, and which of them to use."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from multigrid.grids import SamplingOptions
from multigrid.shapes import Factors


@dataclass(frozen=True)
class Cycles:
    """How a multigrid training changes the shape of the mini-batch.

    To change a setting of named cycles, use `dataclasses.replace`, for example
    `replace(multigrid.GENTLE, epoch_factor=1.0)`.

    Args:
        long_cycle: Frames and crop of each long-cycle shape as fractions (t/T, h/H) of the
            baseline's, from small to large. If empty, there is no long cycle, with one
            exception: if there is a short cycle and the learning rate decreases in steps, the
            baseline's shape is used as the only long-cycle shape (paper §4.2).
        short_cycle: The crops of the short cycle as fractions h/H of the baseline's crop. The
            long-cycle crop is always added as the last one. Empty for no short cycle.
        epoch_factor: Number of epochs as a multiple of the baseline's.
        batch_exponent: How much the batch grows for smaller shapes (see `scale_shape`). The paper
            uses 1.
        sampling: How the data set cuts clips from videos.
        name: Name of the constant that defines these cycles, such as "PAPER". It is ignored when
            cycles are compared.
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

There are four long-cycle shapes. The batch grows by Equation 1. Crops of smaller shapes may show
less of a frame than the baseline's crops. The training has 1.5 × the baseline's epochs.
"""

GENTLE = Cycles(
    long_cycle=((0.5, 0.5), (1.0, 0.5), (1.0, 1.0)),
    epoch_factor=0.75,
    batch_exponent=0.5,
    sampling=SamplingOptions(keep_field_of_view=True),
    name="GENTLE",
)
"""Cycles for short trainings.

Clips have at least half of the baseline's frames. The batch size is 3 ×, then 2 ×, then 1 × the
baseline's. Crops always show as much of a frame as the baseline's crops. There is no short cycle.
The training has 0.75 × the baseline's epochs.
"""

PAPER_ITERATIONS = 25_000
"""Minimum number of baseline iterations for which `PAPER` is recommended.

This threshold is an estimate. On real video, `PAPER` was 2.5 to 65 points less accurate than
`GENTLE` in trainings of up to 9,000 iterations, and equally accurate at 18,000 iterations
(benchmarks/real_video/README.md). The shortest published training for which `PAPER` helped has
28,000 iterations (Charades).
"""


def recommend_cycles(baseline_iterations: float) -> Cycles:
    """Return `PAPER` for long trainings and `GENTLE` for short trainings.

    Args:
        baseline_iterations: Number of iterations of the baseline, epochs × videos / batch size.
    """
    return PAPER if baseline_iterations >= PAPER_ITERATIONS else GENTLE
