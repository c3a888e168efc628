"""Limits on the number of unreadable videos, and their log lines."""

from __future__ import annotations

import logging
from functools import cache

from multigrid import Schedule, ScheduleStep
from slowfast_patches.datasets.items import TooManyUnreadableError

logger = logging.getLogger(__name__)


def check_count(count: int, videos: int, fraction: float, where: str) -> None:
    """Raise an error if too many videos are unreadable.

    Call this with counts over all processes, so that all of them raise.

    Args:
        count: number of unreadable videos.
        videos: number of all videos.
        fraction: DATA.MAX_BAD_FRACTION.
        where: for the message, such as "epoch 3".

    Raises:
        TooManyUnreadableError: `count` is more than `fraction` of the videos.
    """
    if count > fraction * videos:
        raise TooManyUnreadableError(
            f"{count} of {videos} videos of {where} could not be read, more than "
            f"DATA.MAX_BAD_FRACTION {fraction:g}; mend the files or the list, or raise the fraction"
        )


def count_unreadable(
    counts: dict[int, int], schedule: Schedule, step: ScheduleStep, number: int, fraction: float
) -> None:
    """Add the unreadable videos of an iteration to those of its epoch.

    The total is logged at the end of the epoch. A mini-batch larger than an epoch is compared with
    the number of videos that were read since the epoch's start.

    Args:
        counts: numbers by epoch, which are updated.
        schedule: the schedule of the training.
        step: the iteration.
        number: its unreadable videos, over all processes.
        fraction: DATA.MAX_BAD_FRACTION.

    Raises:
        TooManyUnreadableError: too many videos of the epoch are unreadable.
    """
    epoch, first = divmod(step.first_clip, schedule.num_videos)
    stop = first + step.shape.batch
    counts[epoch] = counts.get(epoch, 0) + number
    where = f"epoch {epoch + 1} (iteration {step.iteration})"
    check_count(counts[epoch], max(schedule.num_videos, stop), fraction, where)
    is_over = stop >= schedule.num_videos or step.iteration + 1 == schedule.iterations
    if is_over and (bad := counts.pop(epoch)):
        logger.info("epoch %d done: %d videos could not be read", epoch + 1, bad)


@cache
def log_unreadable(path: str, reason: str, what_follows: str) -> None:
    """Log an unreadable video, once in this process."""
    logger.warning("%s %s; %s", path, reason, what_follows)
