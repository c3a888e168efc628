"""Division of a multigrid schedule into the epochs of a PySlowFast loop."""

from __future__ import annotations

import math

from multigrid.schedule import Schedule


def epoch_ends(schedule: Schedule) -> tuple[int, ...]:
    """Return the iterations at which the epochs of a schedule end, in ascending order.

    An epoch is a pass over the data. An epoch begins with the first iteration that has no clips of
    earlier passes. If a mini-batch has more clips than the data set, some passes contain no
    beginning of an iteration. Such a pass belongs to the epoch before, so each epoch has at least
    one iteration. The last epoch may be incomplete.
    """
    passes = range(1, math.ceil(round(schedule.epochs, 6)))
    ends = {schedule.first_iteration_after(count * schedule.num_videos) for count in passes}
    return tuple(sorted(ends | {schedule.iterations}))
