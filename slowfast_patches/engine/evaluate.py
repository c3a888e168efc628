"""Validation and multi-view testing, always at the baseline grid."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from fvcore.nn import update_bn_stats
from torch import Tensor, nn

from multigrid import average_running_stats, set_group_size
from slowfast_patches.models.inputs import InputTransform
from slowfast_patches.utils.distributed import World, sum_over_ranks

__all__ = ["Accuracy", "evaluate", "topk_accuracy", "update_precise_bn"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Accuracy:
    """Per cent of the videos whose class is the first, or among the first five."""

    top1: float
    top5: float


def topk_accuracy(scores: Tensor, labels: Tensor, k: int) -> float:
    """Per cent of rows of (V, C) scores whose label is among the k highest."""
    best = scores.topk(min(k, scores.shape[1]), dim=1).indices
    return 100 * float((best == labels.view(-1, 1)).any(dim=1).double().mean())


@torch.no_grad()
def evaluate(
    model: nn.Module,
    loader: Iterable[Any],
    transform: InputTransform,
    world: World,
    *,
    num_videos: int,
    num_classes: int,
    ensemble: str = "sum",
    autocast: Callable[[], Any],
) -> Accuracy:
    """Accuracy over videos, each scored by the sum (or maximum) over its clips.

    The loader gives this rank's share of the clips; together the ranks give every clip once.
    """
    model.eval()
    scores = torch.zeros(num_videos, num_classes, dtype=torch.float64, device=world.device)
    labels = torch.zeros(num_videos, dtype=torch.int64, device=world.device)
    seen = torch.zeros(num_videos, dtype=torch.int64, device=world.device)
    for batch in loader:
        for path, reason in batch["failures"]:
            logger.warning("%s %s; a black clip is scored in its place", path, reason)
        with autocast():
            predictions = model(transform(batch["clips"], batch["flips"])).double()
        videos = batch["videos"].to(world.device)
        if ensemble == "sum":
            scores.index_add_(0, videos, predictions)
        else:
            scores.index_reduce_(0, videos, predictions, "amax")
        labels[videos] = batch["labels"].to(world.device)
        seen.index_add_(0, videos, torch.ones_like(videos))
    return _accuracy(scores, labels, seen, ensemble)


def update_precise_bn(
    model: nn.Module,
    loader: Any,
    transform: InputTransform,
    autocast: Callable[[], Any],
    global_batch: int,
) -> None:
    """Replace the running statistics by those of the loader's clips (Wu and Johnson, 2021).

    Grouped BN normalises them over `global_batch` clips, on however many processes.
    """
    model.train()
    set_group_size(model, global_batch)
    inputs = (transform(batch["clips"], batch["flips"]) for batch in loader)
    with autocast():
        update_bn_stats(model, inputs, len(loader))
    average_running_stats(model)


def _accuracy(scores: Tensor, labels: Tensor, seen: Tensor, ensemble: str) -> Accuracy:
    if ensemble == "sum":
        sum_over_ranks(scores)
    elif torch.distributed.is_initialized():
        torch.distributed.all_reduce(scores, torch.distributed.ReduceOp.MAX)
    shares = sum_over_ranks((seen > 0).to(torch.int64))
    labels = sum_over_ranks(labels) // shares.clamp(min=1)
    assert bool((sum_over_ranks(seen) > 0).all()), "a video was not evaluated"
    return Accuracy(topk_accuracy(scores, labels, 1), topk_accuracy(scores, labels, 5))
