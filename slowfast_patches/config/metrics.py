"""The metrics that the runs of a recipe are judged by; values are per cent throughout."""

from __future__ import annotations

from collections.abc import Mapping

from slowfast_patches.config.recipe import Recipe

__all__ = [
    "COUNTS",
    "EMA",
    "accuracy_ranks",
    "format_metrics",
    "metric_names",
    "metric_title",
    "with_suffix",
]

COUNTS = ("videos", "unreadable", "partly_read")
"""What stands beside metrics: how many videos there are, how many of them could not be read and are
left out, and how many are scored on a part of their clips."""

EMA = "_ema"
"""What the name of a metric of the averaged weights (MODEL.EMA_DECAY) ends in."""

_TITLES = {"top1": "top-1", "top5": "top-5", "map": "mAP"}


def metric_names(recipe: Recipe) -> tuple[str, ...]:
    """The names of a recipe's metrics in result files, the primary one first.

    ("top1", "top5") where a video has one label, ("top1",) of at most five classes; ("map",), the
    mean over the classes of their average precision, where it, or a box, has several.
    """
    if recipe.multi_label:
        return ("map",)
    return tuple(f"top{k}" for k in accuracy_ranks(recipe.model.num_classes))


def accuracy_ranks(num_classes: int) -> tuple[int, ...]:
    """The k of top-k accuracy: among five classes, any label is one of the first five."""
    return (1, 5) if num_classes > 5 else (1,)


def metric_title(name: str) -> str:
    """A metric as people write it: "top-1", "top-5" or "mAP", of averaged weights "top-1 (EMA)"."""
    return _TITLES[name.removesuffix(EMA)] + " (EMA)" * name.endswith(EMA)


def with_suffix(values: Mapping[str, float], suffix: str) -> dict[str, float]:
    """Metrics by names that end in `suffix`; what stands beside them keeps its names."""
    return {name if name in COUNTS else name + suffix: value for name, value in values.items()}


def format_metrics(values: Mapping[str, float]) -> str:
    """Metrics in one line: "top-1 76.40, top-5 92.40", and what is left out of them."""
    parts = [f"{metric_title(k)} {value:.2f}" for k, value in values.items() if k not in COUNTS]
    if values.get("unreadable"):
        parts.append(f"without {values['unreadable']} of {values['videos']} videos (unreadable)")
    if values.get("partly_read"):
        parts.append(f"{values['partly_read']} read in part")
    return ", ".join(parts)
