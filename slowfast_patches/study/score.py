"""Scores of arms with their standard errors, and the chance level. All reports use them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pandas as pd

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.dataset_lists import list_path, read_list
from slowfast_patches.study.runs import mean
from slowfast_patches.utils.tables import Mean

CLEAR = 2
"""Minimum number of standard errors for a difference to count as clear."""


class Score(NamedTuple):
    """Mean score of an arm in per cent, with its standard errors in percentage points.

    Attributes:
        mean: Mean over seeds.
        of_videos: Standard error due to the finite number of videos. 0 if it is unknown, as for
            mean average precision.
        of_seeds: Standard error due to the finite number of seeds. 0 if it is unknown.
    """

    mean: float
    of_videos: float = 0.0
    of_seeds: float = 0.0

    @property
    def error(self) -> float:
        """Standard error due to videos and seeds."""
        return math.hypot(self.of_videos, self.of_seeds)

    def __str__(self) -> str:
        """Format as `76.4 ± 0.2`, or as `76.4` if the standard error is unknown."""
        return Mean(self.mean, self.error or None).format()

    def minus(self, other: Score) -> Score:
        """Return the difference to another score."""
        return Score(self.mean - other.mean, self.error, other.error)


def score_of(runs: pd.DataFrame, arm: str, metric: str, seed_spread: float | None = None) -> Score:
    """Return the score of an arm that has finished runs.

    Args:
        runs: Table returned by `Study.runs`.
        arm: Name of the arm.
        metric: Name of the metric. Only top-1 accuracy has a standard error due to videos.
        seed_spread: Standard deviation of an accuracy p over seeds in percentage points, divided by
            p (1 − p). None uses the sample standard deviation.
    """
    found = mean(runs, arm, metric)
    assert found is not None, "An arm without runs has no score."
    results = runs.loc[runs["arm"] == arm, "result"]
    videos = scored_videos(results)
    of_videos = 0.0
    of_seeds = found.std or 0.0
    if metric == "top1" and videos:
        # If no or all videos are correct, assume one, because the binomial formula would give 0.
        part = min(max(found.mean / 100, 1 / videos), 1 - 1 / videos)
        of_videos = 100 * math.sqrt(part * (1 - part) / videos)
        if seed_spread is not None:
            of_seeds = seed_spread * part * (1 - part)
    return Score(found.mean, of_videos, of_seeds / math.sqrt(len(results)))


def scored_videos(results: Iterable[Mapping[str, Any]]) -> int:
    """Return the smallest number of videos that any of the runs was scored on."""
    return min(int(run.get("videos", 0) - run.get("unreadable", 0)) for run in results)


def chance_of(recipe: Recipe) -> float | None:
    """Return the accuracy of always predicting the most common class.

    If the list file does not exist, all classes are assumed to be equally common.

    Returns:
        The accuracy in per cent, or None for a recipe with several labels per video.
    """
    if recipe.multi_label:
        return None
    split = "test" if recipe.test.enable else "val"
    videos = read_list(recipe, split) if list_path(recipe, split).is_file() else []
    labels = Counter(getattr(video, "label", None) for video in videos)
    del labels[None]
    if not labels:
        return 100 / recipe.model.num_classes
    return 100 * max(labels.values()) / labels.total()
