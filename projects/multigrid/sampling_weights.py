"""Sampling weights: videos that are drawn more often than others."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from multigrid.errors import MultigridError


class WeightedStream:
    """Endless stream of clips in which videos appear in proportion to their weights.

    An epoch has as many clips as there are videos. A video with n times the mean weight appears n
    times in each epoch, rounded up or down at random (systematic resampling). With equal weights,
    each video appears once, as without weights. The stream depends on the seed alone.

    Args:
        seed: Seed of the stream.
        weights: Weight of each video. A video with weight 0 never appears.

    Raises:
        ValueError: A weight is negative or not finite, or all are 0.
    """

    def __init__(self, seed: int, weights: Sequence[float]) -> None:
        array = np.asarray(weights, np.float64)
        if array.ndim != 1 or not np.isfinite(array).all() or array.min() < 0 or not array.any():
            raise MultigridError(
                "weights must be a list of finite numbers, one for each video. None may be "
                "negative, and one must be above 0"
            )
        self.seed = seed
        self._shares = array / array.sum() * len(array)
        self._most = max(1, math.ceil(round(self._shares.max(), 6)))
        self._draw = lru_cache(maxsize=4)(self._draw_epoch)

    def at(self, number: int) -> tuple[int, int]:
        """Return the (video, epoch) pair at an index of the stream.

        The second number differs for each clip of a video, as the seed of random augmentation must.
        """
        epoch, place = divmod(number, len(self._shares))
        videos, repeats = self._draw(epoch)
        return int(videos[place]), epoch * self._most + int(repeats[place])

    def _draw_epoch(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw the videos of an epoch, and count the earlier appearances of each in the epoch."""
        rng = np.random.default_rng((self.seed, epoch))
        count = len(self._shares)
        order = rng.permutation(count)
        ends = np.cumsum(self._shares[order])
        points = (rng.random() + np.arange(count)) * (ends[-1] / count)
        drawn = rng.permutation(order[np.searchsorted(ends, points, side="right")])
        by_video = np.argsort(drawn, kind="stable")
        starts = np.searchsorted(drawn[by_video], drawn[by_video])
        repeats = np.empty(count, np.int64)
        repeats[by_video] = np.arange(count) - starts
        return drawn, np.minimum(repeats, self._most - 1)


def balanced_weights(labels: Iterable[int]) -> list[float]:
    """Return weights with which each class appears equally often.

        training = Training(schedule, model, optimizer, weights=balanced_weights(labels))

    Args:
        labels: Class of each video.
    """
    listed = [int(label) for label in labels]
    counts = Counter(listed)
    return [1 / counts[label] for label in listed]
