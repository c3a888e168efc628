"""How many unreadable videos a training or an evaluation accepts."""

from __future__ import annotations

import logging
from functools import cache

from multigrid import Schedule, Step
from slowfast_patches.datasets.items import TooManyUnreadableError

logger = logging.getLogger(__name__)


def check_count(count: int, videos: int, fraction: float, where: str) -> None:
    """Raise TooManyUnreadableError for more videos than DATA.MAX_BAD_FRACTION, `fraction`, in every
    process: they count together."""
    if count > fraction * videos:
        raise TooManyUnreadableError(
            f"{count} of {videos} videos of {where} could not be read, more than "
            f"DATA.MAX_BAD_FRACTION {fraction:g}; mend the files or the list, or raise the fraction"
        )


def count_unreadable(
    counts: dict[int, int], schedule: Schedule, step: Step, number: int, fraction: float
) -> None:
    """Add an iteration's unreadable videos, over all processes, to the `counts` of the epoch it
    starts in, and log their number after the epoch.

    Raises as `check_count`, of an epoch's videos or, where mini-batches are as large, of all that
    were read from its start on.
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
