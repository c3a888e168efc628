"""The metrics that the runs of a recipe are judged by; values are per cent throughout."""

from __future__ import annotations

from collections.abc import Mapping

from fvcore.common.config import CfgNode

__all__ = ["EMA", "format_metrics", "metric_names", "metric_title"]

EMA = "_ema"
"""What the name of a metric of the averaged weights (MODEL.EMA_DECAY) ends in."""

_TITLES = {"top1": "top-1", "top5": "top-5", "map": "mAP"}


def metric_names(cfg: CfgNode) -> tuple[str, ...]:
    """The names of a recipe's metrics in result files, the primary one first.

    ("top1", "top5") where a video has one label; ("map",), the mean over the classes of their
    average precision, where it has several.
    """
    return ("map",) if cfg.DATA.MULTI_LABEL else ("top1", "top5")


def metric_title(name: str) -> str:
    """A metric as people write it: "top-1", "top-5" or "mAP", of averaged weights "top-1 (EMA)"."""
    return _TITLES[name.removesuffix(EMA)] + " (EMA)" * name.endswith(EMA)


def format_metrics(values: Mapping[str, float]) -> str:
    """Metrics in one line: "top-1 76.40, top-5 92.40"."""
    return ", ".join(f"{metric_title(name)} {value:.2f}" for name, value in values.items())
