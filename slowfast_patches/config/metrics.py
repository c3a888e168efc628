"""Names and formatting of metrics. All values of metrics are percentages."""

from __future__ import annotations

from collections.abc import Mapping

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.registry import TASKS

COUNTS = ("videos", "unreadable", "partly_read")
"""Names of the counts that a result has in addition to metrics: the number of all videos, of
unreadable videos, which are not scored, and of videos that are scored on some of their clips."""

EMA = "_ema"
"""Suffix of the names of metrics that were computed with averaged weights (MODEL.EMA_DECAY)."""

_TITLES = {"top1": "top-1", "top5": "top-5", "map": "mAP"}


def metric_names(recipe: Recipe) -> tuple[str, ...]:
    """Return the names of a recipe's metrics in result files, with the primary metric first.

    With five classes or fewer, there is no top-5 accuracy, because it would always be 100 %.
    """
    few_classes = recipe.model.num_classes <= 5
    return tuple(m for m in TASKS[recipe.task].metrics if not (m == "top5" and few_classes))


def metric_title(name: str) -> str:
    """Return the display name of a metric, such as "top-1", "mAP" or "top-1 (EMA)"."""
    plain = name.removesuffix(EMA)
    return _TITLES.get(plain, plain) + " (EMA)" * name.endswith(EMA)


def with_suffix(values: Mapping[str, float], suffix: str) -> dict[str, float]:
    """Append a suffix to the names of metrics, but not to the names in `COUNTS`."""
    return {name if name in COUNTS else name + suffix: value for name, value in values.items()}


def format_metrics(values: Mapping[str, float]) -> str:
    """Format metrics in one line, such as "top-1 76.40, top-5 92.40".

    The line also has the numbers of unreadable and partly read videos unless they are 0.
    """
    parts = [f"{metric_title(k)} {value:.2f}" for k, value in values.items() if k not in COUNTS]
    if values.get("unreadable"):
        parts.append(f"without {values['unreadable']} of {values['videos']} videos (unreadable)")
    if values.get("partly_read"):
        parts.append(f"{values['partly_read']} read in part")
    return ", ".join(parts)
