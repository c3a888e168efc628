"""Verdict of a comparison: speed-ups, changes in accuracy, and the chance level."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from slowfast_patches.config.metrics import metric_title
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.dataset_lists import list_path, read_list
from slowfast_patches.study.arms import Arm
from slowfast_patches.study.runs import mean
from slowfast_patches.utils.tables import Mean, format_list

_CLEAR = 2
"""Minimum number of standard errors for a difference to count as clear."""


def verdict(
    arms: Sequence[Arm], runs: pd.DataFrame, metric: str, chance: float | None, *, by_clock: bool
) -> str:
    """Return one sentence that compares arms with their baseline.

    Arms that are longer or shorter than the baseline are left out.

    Args:
        arms: Arms that share one baseline.
        runs: Table returned by `Study.runs`.
        metric: Name of the primary metric.
        chance: Chance level returned by `chance_of`.
        by_clock: Whether speed-ups are computed from wall-clock times. If so, the sentence also
            gives speed-ups with evaluation and test.

    Returns:
        The sentence, or an empty string until the baseline and another arm have finished runs.
    """
    baseline = next(arm for arm in arms if arm.name == arm.baseline)
    before = _score(runs, baseline.name, metric)
    clauses = list[str]()
    for arm in arms:
        after = _score(runs, arm.name, metric)
        speed_up = mean(runs, arm.name, "speed_up")
        total = mean(runs, arm.name, "total_speed_up")
        if arm is baseline or arm.length != baseline.length or not (before and after):
            continue
        if speed_up is None or total is None:
            continue
        whole = f" ({_speed(total.mean)} with evaluation and test)" if by_clock else ""
        clauses.append(
            f"{arm.name} is {_speed(speed_up.mean)}{whole} and {_change(before, after, metric)}"
        )
    if not clauses:
        return ""
    last = [] if chance is None else [f"chance is {chance:.1f} %"]
    return f"Compared with {baseline.name}, {'; '.join([*clauses, *last])}."


def _speed(factor: float) -> str:
    if f"{factor:.2f}" == "1.00":
        return "as fast"
    return f"{factor:.2f}× faster" if factor > 1 else f"{1 / factor:.2f}× slower"


def _change(before: Mean, after: Mean, metric: str) -> str:
    change = after.mean - before.mean
    error = math.hypot(before.std or 0.0, after.std or 0.0)
    digits = 0 if error >= _CLEAR else 1
    unknown = before.std is None and after.std is None  # mAP of a single seed
    undecided = ", undecided" if unknown or abs(change) < _CLEAR * error else ""
    return (
        f"{'loses' if change < 0 else 'gains'} "
        f"{Mean(abs(change), error or None).format(digits)} points of {metric_title(metric)} "
        f"({after.format()} % against {before.format()} %{undecided})"
    )


def _score(runs: pd.DataFrame, arm: str, metric: str) -> Mean | None:
    """Return the mean of a metric over an arm's runs, with its standard error as `std`.

    The standard error combines the binomial error over the scored videos with the variation between
    seeds. Metrics other than top-1 have no binomial error.
    """
    found = mean(runs, arm, metric)
    if found is None:
        return None
    results = runs.loc[runs["arm"] == arm, "result"]
    videos = scored_videos(results)
    of_videos = videos_error(found.mean, videos) if metric == "top1" and videos else 0.0
    of_seeds = (found.std or 0.0) / math.sqrt(len(results))
    return Mean(found.mean, math.hypot(of_videos, of_seeds) or None)


def title_of(metrics: Iterable[str]) -> str:
    """Join the titles of metrics, for example to "top-1 and top-5"."""
    return " and ".join(map(metric_title, metrics))


def videos_error(score: float, videos: int) -> float:
    """Return the binomial standard error of an accuracy in percentage points.

    If all or none of the videos are correct, compute the error for a single wrong or correct video,
    because the binomial formula would give 0.

    Args:
        score: Accuracy in per cent.
        videos: Number of scored videos.
    """
    part = min(max(score / 100, 1 / videos), 1 - 1 / videos)
    return 100 * math.sqrt(part * (1 - part) / videos)


def scored_videos(results: Iterable[Mapping[str, Any]]) -> int:
    """Return the smallest number of videos that any of the runs was scored on."""
    return min(int(run.get("videos", 0) - run.get("unreadable", 0)) for run in results)


def explain_errors(runs: pd.DataFrame, metric: str) -> str:
    """Return a sentence that explains the ± in the verdict."""
    seeds = int(runs.groupby("arm").size().min())
    parts = [f"{seeds} seed{'s' if seeds > 1 else ''}"]
    videos = scored_videos(runs["result"])
    if metric == "top1" and videos:
        parts.insert(0, f"{videos} videos")
    elif seeds == 1:
        return f"The standard error of {metric_title(metric)} is unknown for a single seed."
    return f"± in the verdict is the standard error, estimated from {format_list(parts)}."


def at_chance(runs: pd.DataFrame, metric: str, chance: float | None) -> list[str]:
    """Return the names of the arms whose score is not clearly above chance."""
    if chance is None:
        return []
    scores = {arm: _score(runs, arm, metric) for arm in runs["arm"].unique()}
    return [
        arm
        for arm, score in scores.items()
        if score and score.mean - _CLEAR * (score.std or 0.0) <= chance
    ]


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
