"""Scores of variants with their standard errors, and the chance level. All reports use them."""

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

SPREAD = 40.0
"""Standard deviation of an accuracy p over seeds, in percentage points, divided by p (1 − p).

The value is the root mean square over twenty trainings on two data sets of words and digits
(benchmarks/real_video/README.md).
"""
_LEAST = 0.005
"""Smallest share of correct or of wrong videos that is assumed if their number is unknown."""
_WEIGHT = 4
"""Number of further seeds that the model of the spread counts as. A few seeds estimate their own
spread badly: with two seeds, 38 % of all estimates are below half of the true value."""


def score_of(runs: pd.DataFrame, variant: str, metric: str) -> NormalDist:
    """Return the score of a variant that has finished runs.

    The error has two sources: the finite number of videos, and the finite number of seeds. The
    variance over seeds is a weighted average of the variance according to `SPREAD`, with the weight
    `_WEIGHT`, and of the sample variance, with the number of seeds minus 1 as weight.

    Args:
        runs: Table returned by `Experiment.runs`.
        variant: Name of the variant.
        metric: Name of the metric. Only top-1 accuracy has a standard error due to videos.

    Returns:
        The mean over seeds in per cent, with the standard error in percentage points as standard
        deviation.
    """
    own = runs[runs["variant"] == variant]
    mean = float(own[metric].mean())
    videos = scored_videos(own["result"])
    # If no video is right, assume that one is. If all are right, assume that one is wrong.
    # Otherwise, the standard error would be 0.
    least = 1 / videos if videos else _LEAST
    part = min(max(mean / 100, least), 1 - least)
    of_videos = 100 * math.sqrt(part * (1 - part) / videos) if metric == "top1" and videos else 0.0
    sampled = float(own[metric].var()) if len(own) > 1 else 0.0
    modelled = (SPREAD * part * (1 - part)) ** 2
    more = len(own) - 1
    of_seeds = (_WEIGHT * modelled + more * sampled) / (_WEIGHT + more) / len(own)
    return NormalDist(mean, math.hypot(of_videos, math.sqrt(of_seeds)))


def format_score(score: NormalDist) -> str:
    """Format as `76.4 ± 0.2`."""
    return Mean(score.mean, score.stdev).format()


def scored_videos(results: Iterable[Mapping[str, Any]]) -> int:
    """Return the smallest number of videos that any of the runs was scored on, or 0 if unknown."""
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
