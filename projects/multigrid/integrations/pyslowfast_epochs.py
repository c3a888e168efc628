"""Division of a multigrid schedule into the epochs of a PySlowFast loop."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from multigrid.schedule import Schedule


@dataclass(frozen=True)
class EpochTable:
    """Epochs of a schedule, each with at least one iteration.

    An epoch is a pass over the data. An epoch begins with the first iteration that has no clips of
    earlier passes. If a mini-batch has more clips than the data set, some passes contain no
    beginning of an iteration. Such a pass belongs to the epoch before. The last epoch may be
    incomplete.

    Attributes:
        ends: The iterations at which the epochs end, in ascending order.
    """

    ends: tuple[int, ...]

    @classmethod
    def of(cls, schedule: Schedule) -> EpochTable:
        """Return the epochs of a schedule."""
        passes = range(1, math.ceil(round(schedule.epochs, 6)))
        ends = {schedule.first_iteration_after(count * schedule.num_videos) for count in passes}
        return cls(tuple(sorted(ends | {schedule.iterations})))

    def __len__(self) -> int:
        return len(self.ends)

    def start(self, epoch: int) -> int:
        """Return the first iteration of an epoch, or the end of the training after the last.

        Raises:
            ValueError: There is no such epoch.
        """
        if not 0 <= epoch <= len(self):
            raise ValueError(f"Epoch {epoch} does not exist. The training has {len(self)} epochs.")
        return (0, *self.ends)[epoch]

    def length(self, epoch: int) -> int:
        """Return the number of iterations in an epoch."""
        return self.ends[epoch] - self.start(epoch)

    @property
    def longest(self) -> int:
        """Number of iterations in the longest epoch, for meters that need one number for all."""
        return max(map(self.length, range(len(self))))

    def epoch_of(self, iteration: int) -> int:
        """Return the index of the epoch in which an iteration begins."""
        return bisect_right(self.ends, iteration)
