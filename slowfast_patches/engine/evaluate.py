"""Validation and multi-view testing, always at the baseline grid."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from slowfast_patches.models.inputs import InputTransform
from slowfast_patches.utils.distributed import World, max_over_ranks, sum_over_ranks

__all__ = ["evaluate", "mean_average_precision", "topk_accuracy"]

logger = logging.getLogger(__name__)


def topk_accuracy(scores: Tensor, labels: Tensor, k: int) -> float:
    """Per cent of rows of (V, C) scores whose label, of (V,), is among the k highest."""
    best = scores.topk(min(k, scores.shape[1]), dim=1).indices
    return 100 * float((best == labels.view(-1, 1)).any(dim=1).double().mean())


def mean_average_precision(scores: Tensor, labels: Tensor) -> float:
    """Per cent: the mean over classes of the average precision that (V, C) scores rank videos with.

    A class's is scikit-learn's: the mean, over the videos of (V, C) multi-hot labels that have it,
    of the precision at their score. Classes that no video has are left out.

    Raises:
        ValueError: no video has a class; a score is not a number.
    """
    from sklearn.metrics import average_precision_score  # takes seconds, and few recipes need it

    found = labels.any(dim=0)
    if not found.any():
        raise ValueError(
            f"mean average precision needs labels, and none of the {len(labels)} videos has one; "
            "check the list that they are from"
        )
    if scores.isnan().any():
        raise ValueError(
            "mean average precision needs scores that are numbers, and the model gives NaN: the "
            "training diverged. A lower SOLVER.BASE_LR or SOLVER.CLIP_GRAD_L2NORM may help"
        )
    columns = zip(labels.T[found].cpu().numpy(), scores.T[found].cpu().numpy(), strict=True)
    return 100 * fmean(float(average_precision_score(*column)) for column in columns)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    loader: Iterable[Any],
    transform: InputTransform,
    world: World,
    *,
    num_videos: int,
    num_classes: int,
    multi_label: bool = False,
    ensemble: str = "sum",
    autocast: Callable[[], Any],
) -> dict[str, float]:
    """Metrics over videos in per cent, each video scored by the sum (or "max") over its clips.

    The loader gives this rank's share of the clips; together the ranks give every clip once, and
    all of them get the same metrics. A mini-batch's labels are class numbers (N,), judged by top1
    and top5, or with `multi_label` multi-hot (N, C), judged by map; see `metric_names`.

    Raises:
        ValueError: see `mean_average_precision`.
    """
    model.eval()
    videos = _Videos(
        (num_videos, num_classes), multi_label=multi_label, ensemble=ensemble, device=world.device
    )
    for batch in loader:
        for path, reason in batch["failures"]:
            logger.warning("%s %s; a black clip is scored in its place", path, reason)
        with autocast():
            predictions = model(transform(batch["clips"], batch["flips"]))
        videos.add(batch["videos"], predictions, batch["labels"])
    videos.gather()
    if multi_label:
        return {"map": mean_average_precision(videos.scores, videos.labels)}
    return {f"top{k}": topk_accuracy(videos.scores, videos.labels, k) for k in (1, 5)}


class _Videos:
    """Scores (V, C) and labels, (V,) or (V, C), of videos, from clips in any order, on any rank."""

    def __init__(
        self, shape: tuple[int, int], *, multi_label: bool, ensemble: str, device: torch.device
    ) -> None:
        self._sums = ensemble == "sum"
        # No score is the least: a maximum over a zero would lose negative ones.
        nothing = 0.0 if self._sums else -math.inf
        self.scores = torch.full(shape, nothing, dtype=torch.float64, device=device)
        self.labels = torch.zeros(
            shape if multi_label else shape[:1], dtype=torch.int64, device=device
        )
        self._seen = torch.zeros(shape[0], dtype=torch.int64, device=device)

    def add(self, videos: Tensor, scores: Tensor, labels: Tensor) -> None:
        """Add the clips of one mini-batch; `videos` (N,) are the numbers of theirs."""
        # Copies that wait for nothing: a GPU goes on while the next clips are read.
        videos, scores = videos.to(self.scores.device, non_blocking=True), scores.double()
        if self._sums:
            self.scores.index_add_(0, videos, scores)
        else:
            rows = videos.view(-1, 1).expand_as(scores)
            self.scores.scatter_reduce_(0, rows, scores, "amax")
        self.labels[videos] = labels.to(self.labels, non_blocking=True)
        self._seen[videos] = 1

    def gather(self) -> None:
        """Take in what the other ranks have; several may have clips of one video."""
        (sum_over_ranks if self._sums else max_over_ranks)(self.scores)
        max_over_ranks(self.labels)  # a rank without a clip of the video has zeros
        assert bool(max_over_ranks(self._seen).all()), "a video was not evaluated"
