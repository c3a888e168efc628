"""After which iterations a training evaluates and saves: pure functions of the schedule."""

from __future__ import annotations

from multigrid import Schedule
from slowfast_patches.config.recipe import Recipe

__all__ = ["checkpoint_iterations", "evaluation_iterations", "phase_ends"]


def evaluation_iterations(recipe: Recipe, schedule: Schedule) -> frozenset[int]:
    """Numbers of finished iterations at which to validate; the end is always one.

    With the long cycle, MULTIGRID.EVAL_FREQ times in each phase; else every TRAIN.EVAL_PERIOD
    epochs.
    """
    if not recipe.multigrid.long_cycle:
        return _every(recipe.train.eval_period, schedule)
    times = recipe.multigrid.eval_freq
    return frozenset(
        phase.start + max(1, round(phase.iterations * (k + 1) / times))
        for phase in schedule.phases
        for k in range(times)
    )


def checkpoint_iterations(recipe: Recipe, schedule: Schedule) -> frozenset[int]:
    """Numbers of finished iterations at which to save: every CHECKPOINT_PERIOD epochs, and the ends
    of phases, the last of which is the end."""
    return _every(recipe.train.checkpoint_period, schedule) | phase_ends(schedule)


def phase_ends(schedule: Schedule) -> frozenset[int]:
    """Numbers of finished iterations at which a phase ends."""
    return frozenset(phase.stop for phase in schedule.phases)


def _every(epochs: int, schedule: Schedule) -> frozenset[int]:
    """The first iteration after each `epochs` epochs, and the last of all."""
    period = epochs * schedule.num_videos
    times = range(1, schedule.clips // period + 1)
    return frozenset(schedule.first_iteration_after(k * period) for k in times) | {
        schedule.iterations
    }
