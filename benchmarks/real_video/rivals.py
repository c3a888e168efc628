"""Sizes drawn from a moving window, for the recipes recipes/rivals/scheduled_sampling.yaml.

    export PYTHONPATH=benchmarks/real_video
    python benchmarks/real_video/experiments.py words_rivals --words data/words --seeds 0 1 2

The recipes name this module in IMPORTS. A recipe with one phase for each of `RUNGS` then has the
schedule of `scheduled_sampling`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from multigrid import Cycles, LearningRate, Schedule, Shape, config_values, scale_shape
from multigrid.learning_rate import batch_rate_factor
from multigrid.phases import make_schedule
from multigrid.schedule import Phase

RUNGS = ((0.5, 0.5), (1.0, 0.5), (1.0, 0.75), (1.0, 1.0))
"""Sizes of scheduled sampling, as factors (t/T, h/H)."""
WINDOWS = 16
"""Number of positions of the window over the sizes."""
PERIOD = 40
"""Number of iterations that are drawn for a position, and then repeated."""
MIXING = 0.1
"""Probability of a size drawn without regard to the window."""
SIGMA = 0.75
"""Standard deviation of the window, in sizes."""


def scheduled_sampling(
    base: Shape,
    num_videos: int,
    learning_rate: LearningRate,
    cycles: Cycles | None,
    **options: Any,
) -> Schedule:
    """Make a schedule whose shapes are drawn from a Gaussian window over sizes, as in timm.

    The window moves from the smallest size to the largest. Other recipes have their usual schedule.
    """
    if cycles is None or cycles.long_cycle != RUNGS:
        return make_schedule(base, num_videos, learning_rate, cycles, **options)
    divisor = options["size_divisor"]
    sizes = [scale_shape(base, rung, divisor, cycles.batch_exponent) for rung in RUNGS]
    rng = np.random.default_rng(0)
    drawn = [
        tuple(sizes[i] for i in rng.choice(len(sizes), PERIOD, p=_odds(k))) for k in range(WINDOWS)
    ]
    means = [sum(shape.batch for shape in shapes) / PERIOD for shapes in drawn]
    end = learning_rate.stage_ends[-1]
    epochs = cycles.epoch_factor * end
    length = epochs * num_videos / sum(means)
    phases = list[Phase]()
    for k, (shapes, mean) in enumerate(zip(drawn, means, strict=True)):
        phase = Phase(
            start=round(k * length),
            stop=round((k + 1) * length),
            baseline_epochs=(end * k / WINDOWS, end * (k + 1) / WINDOWS),
            stage=0,
            lr_scale=batch_rate_factor(mean / base.batch, options["batch_rate_rule"]),
            shapes=shapes,
            bn_group_sizes=(options["bn_group_size"],) * PERIOD,
            first_clip=sum(earlier.clips for earlier in phases),
        )
        phases.append(phase)
    return Schedule(base, num_videos, epochs, learning_rate, tuple(phases), cycles)


def _odds(window: int) -> NDArray[np.float64]:
    centre = (len(RUNGS) - 1) * (window + 0.5) / WINDOWS
    weights = np.exp(-((np.arange(len(RUNGS)) - centre) ** 2) / (2 * SIGMA**2))
    odds: NDArray[np.float64] = (1 - MIXING) * weights / weights.sum() + MIXING / len(RUNGS)
    return odds


# A recipe cannot name a schedule of another kind.
config_values.make_schedule = scheduled_sampling  # type: ignore[attr-defined, assignment]
