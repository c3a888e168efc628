"""Collect the scores of videos, and compute metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.utils.distributed import max_over_ranks, sum_over_ranks
from slowfast_patches.utils.errors import RunError, UserError


class Evaluation(NamedTuple):
    """Metrics, probabilities and labels of a split of V videos, or of V parts of videos.

    Attributes:
        metrics: Maps metrics to percents, the primary metric first. The last keys are counts:
            "videos", "unreadable" (videos without a score) and, if not 0, "partly_read".
        probabilities: Mean or maximum over the clips of each video, (V, C).
        labels: Class indices (V,), or multi-hot labels (V, C).
        scored: Whether each video has a score, (V,) bool. Ignore the other rows of `probabilities`
            and `labels`.
        precisions: Average precision of each class in percent if the metric is mAP, or None.
        names: Names of the V parts of videos, or None for videos.
        loss: Mean negative log-likelihood of the labels, or None if it is not defined.
    """

    metrics: dict[str, float]
    probabilities: Tensor
    labels: Tensor
    scored: Tensor
    precisions: Sequence[float | None] | None = None
    names: Sequence[str] | None = None
    loss: float | None = None


class ComputedMetrics(NamedTuple):
    """Metrics computed from scores and labels.

    Attributes:
        metrics: Maps metrics to percents, the primary metric first.
        precisions: Average precision of each class in percent if the metric is mAP, or None.
        loss: Mean negative log-likelihood of the labels, or None if it is not defined.
    """

    metrics: dict[str, float]
    precisions: Sequence[float | None] | None = None
    loss: float | None = None


class VideoScores:
    """Collect the scores of all videos of a split over clips and ranks.

    Clips may be added in any order.

    Args:
        recipe: The recipe.
        dataset: The data set of the split.
        device: The device of the tensors.
        compute_metrics: Function that computes the metrics of scores (V, C) and labels.

    Attributes:
        scores: Sum or maximum over the clips of each video, (V, C).
        labels: Class indices (V,), or multi-hot labels (V, C).
        clips: Number of readable clips of each video, (V,).
    """

    def __init__(
        self,
        recipe: Recipe,
        dataset: Any,
        device: torch.device,
        compute_metrics: Callable[[Tensor, Tensor], ComputedMetrics],
    ) -> None:
        self._recipe = recipe
        self._compute_metrics = compute_metrics
        self._num_clips = len(dataset) // len(dataset.videos)
        self._sums = recipe.data.ensemble_method == "sum"
        shape: tuple[int, ...] = (len(dataset.videos), recipe.model.num_classes)
        # For the maximum, do not initialize with zeros, which would replace negative scores.
        least = 0.0 if self._sums else -math.inf
        self.scores = torch.full(shape, least, dtype=torch.float64, device=device)
        shape = shape if recipe.multi_label else shape[:1]
        self.labels = torch.zeros(shape, dtype=torch.int64, device=device)
        self.clips = torch.zeros(len(dataset.videos), dtype=torch.int64, device=device)

    def add(self, part: Mapping[str, Tensor], scores: Tensor) -> None:
        """Add the scores of N clips.

        Args:
            part: Dict with the entries "videos", the video indices of the clips (N,), and "labels".
            scores: Scores of the clips, (N, C).
        """
        # Copy asynchronously, so that the next clips are read while the GPU computes.
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
        """Compute the metrics from the scores of all ranks. Every rank must call this.

        Raises:
            RunError: Too many videos could not be read.
            ValueError: A score is NaN. Or the metric is mAP, but no video has a label.
        """
        (sum_over_ranks if self._sums else max_over_ranks)(self.scores)
        max_over_ranks(self.labels)  # a rank without clips of a video has the label 0
        sum_over_ranks(self.clips)
        counts = count_clips(self.clips, self._num_clips, self._recipe)
        scored = self.clips > 0
        if self._sums:  # mAP compares videos: use means, as some lack clips
            self.scores /= self.clips.clamp(min=1).view(-1, 1)
        if self.scores[scored].isnan().any():
            raise UserError(
                "the metric cannot be computed, because the model returns NaN. The training has "
                "diverged. Train with a lower SOLVER.BASE_LR."
            )
        judged = self._compute_metrics(self.scores[scored], self.labels[scored])
        metrics = judged.metrics | counts
        known = (self.scores, self.labels, scored, judged.precisions)
        return Evaluation(metrics, *known, loss=judged.loss)


def count_clips(clips: Tensor, num_clips: int, recipe: Recipe) -> dict[str, float]:
    """Count the videos of an evaluation and the unreadable ones among them.

    Args:
        clips: Number of readable clips of each video, (V,).
        num_clips: Number of clips that an undamaged video has.
        recipe: The recipe. DATA.MAX_BAD_FRACTION limits the share of unreadable videos.

    Returns:
        The counts "videos", "unreadable" and, if not 0, "partly_read".

    Raises:
        RunError: No video can be read, or the share of unreadable videos exceeds
            DATA.MAX_BAD_FRACTION. Partly readable videos do not count.
    """
    videos = len(clips)
    unreadable = int((clips == 0).sum())
    if unreadable == videos:
        text = f"None of the {videos} videos of the evaluation could be read."
        raise RunError(f"{text} Check DATA.PATH_PREFIX and the list of videos.")
    check_count(unreadable, videos, recipe.data.max_bad_fraction, "the evaluation")
    counts: dict[str, float] = {"videos": videos, "unreadable": unreadable}
    partly = int((clips < num_clips).sum()) - unreadable
    return counts | ({"partly_read": partly} if partly else {})


_LEAST_LOG = -100.0
"""Least logarithm of a probability, as in torch's binary cross entropy. The loss stays finite."""


_ROUNDED = 1e-4
"""By how much a sum of probabilities may exceed 1."""


def label_loss(probabilities: Tensor, labels: Tensor) -> float | None:
    """Return the mean negative log-likelihood of class indices (V,), given probabilities (V, C).

    Return None for scores that are no probabilities, such as the logits of a user's network.
    """
    if not _are_probabilities(probabilities):
        return None
    own = probabilities.double().gather(1, labels.view(-1, 1))
    return float(-own.log().clamp(_LEAST_LOG, 0).mean())


def multi_label_loss(probabilities: Tensor, labels: Tensor) -> float | None:
    """Return the mean binary cross entropy of multi-hot labels (V, C), or None (`label_loss`)."""
    if not _are_probabilities(probabilities):
        return None
    return float(binary_cross_entropy(probabilities.double().clamp(0, 1), labels.double()))


def _are_probabilities(scores: Tensor) -> bool:
    return bool(((scores >= 0) & (scores <= 1 + _ROUNDED)).all())


def topk_accuracy(scores: Tensor, labels: Tensor, k: int) -> float:
    """Return the percentage of rows whose label is among the classes with the k highest scores.

    If n classes have equal scores, and only m of them fit into the k highest, each counts as m / n.
    If all scores are equal, the result is thus that of random guessing.
    """
    own = scores.gather(1, labels.view(-1, 1))
    higher = (scores > own).sum(1)
    equal = (scores == own).sum(1)
    shares = ((k - higher).double() / equal).clamp(0, 1)
    return 100 * float(shares.mean())


def average_precisions(scores: Tensor, labels: Tensor) -> list[float | None]:
    """Compute the average precision of each class with scikit-learn.

    Args:
        scores: Scores of each class, (V, C).
        labels: Multi-hot labels, (V, C).

    Returns:
        One value in percent for each class, or None for a class without videos.

    Raises:
        ValueError: No video has a label, or a score is NaN.
    """
    from sklearn.metrics import average_precision_score  # takes seconds to import

    if not labels.any():
        raise UserError(
            f"mAP cannot be computed, because none of the {len(labels)} videos has a label. Check "
            "the list of videos."
        )
    columns = zip(labels.T.cpu().numpy(), scores.T.cpu().numpy(), strict=True)
    return [
        100 * float(average_precision_score(*column)) if column[0].any() else None
        for column in columns
    ]


def check_count(count: int, videos: int, fraction: float, where: str) -> None:
    """Raise an error if too many videos are unreadable.

    Sum the counts over all processes before the call, so that all processes raise the error.

    Args:
        count: Number of unreadable videos.
        videos: Number of all videos.
        fraction: Maximum fraction of unreadable videos (DATA.MAX_BAD_FRACTION).
        where: Text that names the set of videos in the message, such as "epoch 3".

    Raises:
        RunError: `count` is more than `fraction` of the videos.
    """
    # A product would be rounded: 0.29 * 100 is below 29.
    if count / videos > fraction:
        raise RunError(
            f"{count} of {videos} videos of {where} could not be read, more than "
            f"DATA.MAX_BAD_FRACTION {fraction:g} allows. Repair the files, remove them from the "
            "list, or raise DATA.MAX_BAD_FRACTION"
        )
