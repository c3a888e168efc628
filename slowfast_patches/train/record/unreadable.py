"""The videos that a run could not read: named once, counted by epoch, limited."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from multigrid import Schedule, Step
from slowfast_patches.launch.stopping import TrainingStoppedError

__all__ = ["TooManyUnreadableError", "Unreadable", "check_count"]

logger = logging.getLogger(__name__)


class TooManyUnreadableError(TrainingStoppedError):
    """Too many videos cannot be read. Every process raises it: they count together."""


def check_count(count: int, videos: int, fraction: float, where: str) -> None:
    """Raise TooManyUnreadableError for more videos than DATA.MAX_BAD_FRACTION, `fraction`."""
    if count > fraction * videos:
        raise TooManyUnreadableError(
            f"{count} of {videos} videos of {where} could not be read, more than "
            f"DATA.MAX_BAD_FRACTION {fraction:g}; mend the files or the list, or raise the fraction"
        )


class Unreadable:
    """Unreadable videos by epoch, over all processes; `fraction` of an epoch's may be."""

    def __init__(self, schedule: Schedule, fraction: float) -> None:
        self._schedule, self._fraction = schedule, fraction
        self.counts = Counter[int]()
        self._named: set[str] = set()

    def name(self, failures: Sequence[tuple[str, str]]) -> None:
        """Say each unreadable video (path, reason) of this process once."""
        for path, reason in failures:
            if path not in self._named:
                logger.warning("%s %s; another video takes its place", path, reason)
                self._named.add(path)

    def count(self, step: Step, count: int) -> None:
        """Count an iteration's unreadable videos, over all processes, for the epoch it starts in;
        say how many there were when the epoch, or the training, is over. Raises as `check_count`,
        of all that was read: mini-batches may be as large as an epoch, and end in another."""
        schedule, videos = self._schedule, self._schedule.num_videos
        epoch, stop = step.first_clip // videos, step.first_clip + step.shape.batch
        self.counts[epoch] += count
        if count:
            first = schedule.at(schedule.first_iteration_after(epoch * videos)).first_clip
            where = f"epoch {epoch + 1} (iteration {step.iteration})"
            check_count(self.counts[epoch], max(videos, stop - first), self._fraction, where)
        is_last = step.iteration + 1 == schedule.iterations
        is_over = is_last or stop // videos > epoch
        if is_over and (bad := self.counts.pop(epoch)):
            logger.info("epoch %d done: %d videos could not be read", epoch + 1, bad)
