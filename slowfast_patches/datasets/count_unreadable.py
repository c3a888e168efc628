"""Log unreadable videos, and stop a run that has too many of them."""

from __future__ import annotations

import logging
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
    if count > fraction * videos:
        raise RunError(
            f"{count} of {videos} videos of {where} could not be read, more than "
            f"DATA.MAX_BAD_FRACTION {fraction:g} allows. Repair the files, remove them from the "
            "list, or raise DATA.MAX_BAD_FRACTION"
        )


def count_unreadable(
    counts: dict[int, int], schedule: Schedule, step: ScheduleStep, number: int, fraction: float
) -> None:
    """Add the number of unreadable videos of an iteration to the count of its epoch.

    Log the count at the end of the epoch. The count is compared with the number of videos in an
    epoch, or, if the last mini-batch of the epoch is larger than that, with the number of clips
    read since the start of the epoch.

    Args:
        counts: Number of unreadable videos by epoch. It is updated in place.
        schedule: The schedule of the training.
        step: The iteration.
        number: Number of unreadable videos in this iteration, summed over all processes.
        fraction: Maximum fraction of unreadable videos (DATA.MAX_BAD_FRACTION).

    Raises:
        RunError: More than `fraction` of the videos are unreadable.
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
    """Log an unreadable video. Repeated calls with the same arguments log it only once.

    Args:
        path: The video.
        reason: Why the video is unreadable.
        what_follows: Text that says how the run continues without the video.
    """
    logger.warning("%s %s; %s", path, reason, what_follows)
