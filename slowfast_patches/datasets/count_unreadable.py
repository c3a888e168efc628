"""Log unreadable videos, and stop a run that has too many of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache

from multigrid import Schedule, ScheduleStep
from slowfast_patches.utils.errors import RunError

logger = logging.getLogger(__name__)


def check_count(count: int, videos: int, fraction: float, where: str) -> None:
    """Raise an error if too many videos are unreadable.

    Sum the counts over all processes before the call, so that all processes raise the error.

    Args:
        count: Number of unreadable videos.
        videos: Number of all videos.
        fraction: Maximum fraction of unreadable videos (DATA.MAX_BAD_FRACTION).
        where: Text that names the set of videos in the message, such as "epoch 3".

    Raises:
        RunError: `count` is more than `fraction` of the videos.
    """
    # A product would be rounded: 0.29 * 100 is below 29.
    if count / videos > fraction:
        raise RunError(
            f"{count} of {videos} videos of {where} could not be read, more than "
            f"DATA.MAX_BAD_FRACTION {fraction:g} allows. Repair the files, remove them from the "
            "list, or raise DATA.MAX_BAD_FRACTION"
        )


def count_unreadable(
    counts: dict[int, int],
    schedule: Schedule,
    step: ScheduleStep,
    numbers: Sequence[int],
    fraction: float,
) -> None:
    """Add the unreadable videos of an iteration to the counts of its epochs.

    A mini-batch may have clips of several epochs. An epoch visits each video once, so its count is
    compared with the number of videos. It is logged at the end of the epoch.

    Args:
        counts: Number of unreadable videos by epoch. It is updated in place.
        schedule: The schedule of the training.
        step: The iteration.
        numbers: Number of unreadable videos in each epoch of the mini-batch (`epochs_of`), summed
            over all processes.
        fraction: Maximum fraction of unreadable videos (DATA.MAX_BAD_FRACTION).

    Raises:
        RunError: More than `fraction` of the videos are unreadable.
    """
    stop = step.first_clip + step.shape.batch
    for epoch, number in zip(epochs_of(schedule, step), numbers, strict=True):
        counts[epoch] = counts.get(epoch, 0) + number
        where = f"epoch {epoch + 1} (iteration {step.iteration})"
        check_count(counts[epoch], schedule.num_videos, fraction, where)
        is_over = stop >= (epoch + 1) * schedule.num_videos
        if (is_over or step.iteration + 1 == schedule.iterations) and (bad := counts.pop(epoch)):
            logger.info("epoch %d done: %d videos could not be read", epoch + 1, bad)


def epochs_of(schedule: Schedule, step: ScheduleStep) -> range:
    """Return the epochs of which the mini-batch of an iteration has clips."""
    first = step.first_clip // schedule.num_videos
    last = (step.first_clip + step.shape.batch - 1) // schedule.num_videos
    return range(first, last + 1)


@cache
def log_unreadable(path: str, reason: str, what_follows: str) -> None:
    """Log an unreadable video. Repeated calls with the same arguments log it only once.

    Args:
        path: The video.
        reason: Why the video is unreadable.
        what_follows: Text that says how the run continues without the video.
    """
    logger.warning("%s %s; %s", path, reason, what_follows)
