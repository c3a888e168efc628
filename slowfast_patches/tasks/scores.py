"""Scores of videos, and metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.items import TooManyUnreadableError
from slowfast_patches.datasets.unreadable import check_count
from slowfast_patches.utils.distributed import max_over_ranks, sum_over_ranks


class Evaluation(NamedTuple):
    """Metrics, probabilities and labels of a split.

    Attributes:
        metrics: per cent, the primary metric first, then numbers of videos: "videos", "unreadable"
            (not scored) and, if there are any, "partly_read".
        probabilities: (V, C), the mean or the maximum over the clips of each video.
        labels: (V,), or (V, C) for several labels a video.
        scored: (V,) bool. The rows of videos that are not scored have no meaning.
        precisions: average precision of each class, if the metric is mAP.
        names: names of the boxes. None for videos, which have their own.
    """

    metrics: dict[str, float]
    probabilities: Tensor
    labels: Tensor
    scored: Tensor
    precisions: Sequence[float | None] | None = None
    names: Sequence[str] | None = None


class Judgement(NamedTuple):
    """Metrics of a split in per cent, and the average precision of each class for mAP."""

    metrics: dict[str, float]
    precisions: Sequence[float | None] | None = None


class VideoScores:
    """Scores of all videos of a split, collected over clips and ranks.

    Clips may come in any order.

    Attributes:
        scores: (V, C).
        labels: (V,), or (V, C) for several labels a video.
        clips: number of readable clips of each video, (V,).
    """

    def __init__(
        self,
        recipe: Recipe,
        dataset: Any,
        device: torch.device,
        judge: Callable[[Tensor, Tensor], Judgement],
    ) -> None:
        self._recipe = recipe
        self._judge = judge
        self._num_clips = len(dataset) // len(dataset.videos)
        self._sums = recipe.data.ensemble_method == "sum"
        shape: tuple[int, ...] = (len(dataset.videos), recipe.model.num_classes)
        # A maximum over a zero would lose negative scores.
        least = 0.0 if self._sums else -math.inf
        self.scores = torch.full(shape, least, dtype=torch.float64, device=device)
        shape = shape if recipe.multi_label else shape[:1]
        self.labels = torch.zeros(shape, dtype=torch.int64, device=device)
        self.clips = torch.zeros(len(dataset.videos), dtype=torch.int64, device=device)

    def add(self, part: Mapping[str, Tensor], scores: Tensor) -> None:
        """Add the scores of N clips. `part` has their labels and the numbers of their videos."""
        # Copies that wait for nothing: a GPU goes on while the next clips are read.
        videos = part["videos"].to(self.scores.device, non_blocking=True)
        labels = part["labels"]
        if self._sums:
            self.scores.index_add_(0, videos, scores.double())
        else:
            rows = videos.view(-1, 1).expand_as(scores)
            self.scores.scatter_reduce_(0, rows, scores.double(), "amax")
        self.labels[videos] = labels.to(self.labels, non_blocking=True)
        self.clips.index_add_(0, videos, torch.ones_like(videos))

    def result(self) -> Evaluation:
        """Compute metrics from the scores of all ranks. Every rank must call this.

        Raises:
            TooManyUnreadableError: too many videos could not be read.
            ValueError: there is no metric, as in `average_precisions`.
        """
        (sum_over_ranks if self._sums else max_over_ranks)(self.scores)
        max_over_ranks(self.labels)  # a rank without a clip of the video has zeros
        sum_over_ranks(self.clips)
        counts = count_clips(self.clips, self._num_clips, self._recipe)
        scored = self.clips > 0
        if self._sums:  # mAP ranks means of videos with each other: as if none had lost a clip
            self.scores /= self.clips.clamp(min=1).view(-1, 1)
        metrics, precisions = self._judge(self.scores[scored], self.labels[scored])
        return Evaluation(metrics | counts, self.scores, self.labels, scored, precisions)


def count_clips(clips: Tensor, num_clips: int, recipe: Recipe) -> dict[str, float]:
    """Count the videos of an evaluation and those that could not be read.

    Args:
        clips: number of readable clips of each video, (V,).
        num_clips: number of clips that a video should have.
        recipe: says how many unreadable videos are accepted.

    Returns:
        The counts of `Evaluation.metrics`.

    Raises:
        TooManyUnreadableError: no video can be read, or more than DATA.MAX_BAD_FRACTION cannot.
    """
    videos = len(clips)
    unreadable = int((clips == 0).sum())
    if unreadable == videos:
        text = f"none of the {videos} videos of the evaluation could be read"
        raise TooManyUnreadableError(f"{text}; check DATA.PATH_PREFIX and the list")
    damaged = int((clips < num_clips).sum())
    check_count(damaged, videos, recipe.data.max_bad_fraction, "the evaluation")
    counts: dict[str, float] = {"videos": videos, "unreadable": unreadable}
    return counts | ({"partly_read": damaged - unreadable} if damaged > unreadable else {})


def topk_accuracy(scores: Tensor, labels: Tensor, k: int) -> float:
    """Return the per cent of rows whose label is among the k highest scores."""
    best = scores.topk(min(k, scores.shape[1]), dim=1).indices
    return 100 * float((best == labels.view(-1, 1)).any(dim=1).double().mean())


def average_precisions(scores: Tensor, labels: Tensor) -> list[float | None]:
    """Compute the average precision of each class with scikit-learn.

    Args:
        scores: (V, C).
        labels: multi-hot, (V, C).

    Returns:
        Per cent by class, or None for a class that no video has.

    Raises:
        ValueError: no video has a class, or a score is NaN.
    """
    from sklearn.metrics import average_precision_score  # takes seconds to import

    if not labels.any():
        raise ValueError(f"no mAP: none of the {len(labels)} videos has one label; check the list")
    if scores.isnan().any():
        raise ValueError("no mAP: the model gives NaN: the training diverged; lower SOLVER.BASE_LR")
    columns = zip(labels.T.cpu().numpy(), scores.T.cpu().numpy(), strict=True)
    return [
        100 * float(average_precision_score(*column)) if column[0].any() else None
        for column in columns
    ]
