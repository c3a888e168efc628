"""Scores of arms with their standard errors, and the chance level. All reports use them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import NormalDist
from typing import Any

import pandas as pd

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.dataset_lists import list_path, read_list
from slowfast_patches.utils.tables import Mean

CLEAR = 2
"""Minimum number of standard errors for a difference to count as clear."""


def score_of(
    runs: pd.DataFrame, arm: str, metric: str, seed_spread: float | None = None
) -> NormalDist:
    """Return the score of an arm that has finished runs.

    Args:
        runs: Table returned by `Study.runs`.
        arm: Name of the arm.
        metric: Name of the metric. Only top-1 accuracy has a standard error due to videos.
        seed_spread: Standard deviation of an accuracy p over seeds in percentage points, divided by
            p (1 − p). None uses the sample standard deviation.

    Returns:
        The mean over seeds in per cent, with the standard error in percentage points as standard
        deviation. The error is due to the finite numbers of videos and seeds. It is 0 if it is
        unknown.
    """
    own = runs[runs["arm"] == arm]
    mean = float(own[metric].mean())
    of_seeds = float(own[metric].std()) if len(own) > 1 else 0.0
    of_videos = 0.0
    videos = scored_videos(own["result"])
    if metric == "top1" and videos:
        # If no or all videos are correct, assume one, because the binomial formula would give 0.
        part = min(max(mean / 100, 1 / videos), 1 - 1 / videos)
        of_videos = 100 * math.sqrt(part * (1 - part) / videos)
        if seed_spread is not None:
            of_seeds = seed_spread * part * (1 - part)
    return NormalDist(mean, math.hypot(of_videos, of_seeds / math.sqrt(len(own))))


def format_score(score: NormalDist) -> str:
    """Format as `76.4 ± 0.2`, or as `76.4` if the standard error is unknown."""
    return Mean(score.mean, score.stdev or None).format()


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
    if not list_path(recipe, split).is_file():
        return 100 / recipe.model.num_classes
    labels = Counter(video.label for video in read_list(recipe, split))
    return 100 * max(labels.values()) / labels.total()
