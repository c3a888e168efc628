"""Validation and multi-view testing, always at the baseline grid."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from slowfast_patches.config.metrics import accuracy_ranks
from slowfast_patches.models.inputs import InputTransform
from slowfast_patches.train.record.unreadable import TooManyUnreadableError, check_count
from slowfast_patches.utils.distributed import World, gathered, max_over_ranks, sum_over_ranks

__all__ = [
    "Evaluation",
    "average_precisions",
    "evaluate",
    "mean_average_precision",
    "topk_accuracy",
]

logger = logging.getLogger(__name__)


def topk_accuracy(scores: Tensor, labels: Tensor, k: int) -> float:
    """Per cent of rows of (V, C) scores whose label, of (V,), is among the k highest."""
    best = scores.topk(min(k, scores.shape[1]), dim=1).indices
    return 100 * float((best == labels.view(-1, 1)).any(dim=1).double().mean())


def mean_average_precision(scores: Tensor, labels: Tensor) -> float:
    """Per cent: the mean over classes of the average precision that (V, C) scores rank videos with.

    Raises:
        ValueError: as `average_precisions`.
    """
    return fmean(p for p in average_precisions(scores, labels) if p is not None)


def average_precisions(scores: Tensor, labels: Tensor) -> list[float | None]:
    """Per cent, by class: None for one that no video has.

    A class's is scikit-learn's: the mean, over the videos of (V, C) multi-hot labels that have it,
    of the precision at their score.

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
    columns = zip(labels.T.cpu().numpy(), scores.T.cpu().numpy(), strict=True)
    return [
        100 * float(average_precision_score(*column)) if column[0].any() else None
        for column in columns
    ]


class Evaluation(NamedTuple):
    """What an evaluation found.

    metrics: in per cent, the primary one first; then "videos", how many there are, "unreadable",
        how many of them are left out, and, where there are any, "partly_read".
    probabilities: (V, C) of the videos, the mean over their clips, or the maximum.
    labels: (V,) or, of several labels, (V, C).
    scored: (V,) bool; what `probabilities` and `labels` have of the other videos means nothing.
    """

    metrics: dict[str, float]
    probabilities: Tensor
    labels: Tensor
    scored: Tensor


@torch.no_grad()
def evaluate(
    model: nn.Module,
    loader: Iterable[Any],
    transform: InputTransform,
    world: World,
    *,
    num_videos: int,
    num_clips: int,
    num_classes: int,
    multi_label: bool = False,
    ensemble: str = "sum",
    autocast: Callable[[], Any],
    max_bad: float,
    named: set[str] | None = None,
) -> Evaluation:
    """Metrics over videos, each video scored by the sum (or "max") over its clips.

    The loader gives this rank's share of the clips; together the ranks give every clip once, and
    all of them get the same. A mini-batch's labels are class numbers (N,), judged by top1 and, of
    more than five classes, top5, or with `multi_label` multi-hot (N, C), judged by map; see
    `metric_names`. Clips that cannot be read are not in it: a video is scored on its others, and
    one that has none is left out.

    Args:
        num_clips: of a video.
        max_bad: DATA.MAX_BAD_FRACTION; videos that are read in part count too.
        named: paths that are known to be unreadable; others are named in the log, and added.

    Raises:
        TooManyUnreadableError: more videos than `max_bad` allows, or all, cannot be read.
        ValueError: see `mean_average_precision`.
    """
    model.eval()
    videos = _Videos(
        (num_videos, num_classes),
        num_clips,
        multi_label=multi_label,
        ensemble=ensemble,
        device=world.device,
    )
    failures = dict[str, str]()
    for batch in loader:
        failures |= batch["failures"]
        if len(batch["videos"]) == 0:
            continue
        with autocast():
            predictions = model(transform(batch["clips"], batch["flips"]))
        videos.add(batch["videos"], predictions, batch["labels"])
    videos.gather()
    everywhere = gathered(failures)
    assert videos.complete or any(everywhere), "a video was not evaluated"
    if world.is_main:
        _name(everywhere, set() if named is None else named)
    counts = videos.counts(max_bad)
    scores, labels = videos.scores[videos.clips > 0], videos.labels[videos.clips > 0]
    if multi_label:
        metrics = {"map": mean_average_precision(scores, labels)}
    else:
        metrics = {f"top{k}": topk_accuracy(scores, labels, k) for k in accuracy_ranks(num_classes)}
    return Evaluation(metrics | counts, videos.probabilities, videos.labels, videos.clips > 0)


def _name(failures: Sequence[dict[str, str]], named: set[str]) -> None:
    """Say which videos cannot be read, each once, whatever the number of its clips; by rank."""
    for path, reason in {path: reason for own in failures for path, reason in own.items()}.items():
        if path not in named:
            named.add(path)
            logger.warning("%s %s; its clips that cannot be read are not scored", path, reason)


class _Videos:
    """Scores (V, C) and labels, (V,) or (V, C), of videos, from clips in any order, on any rank.

    `clips` (V,) counts them: `num_clips` each, but for those that cannot be read.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        num_clips: int,
        *,
        multi_label: bool,
        ensemble: str,
        device: torch.device,
    ) -> None:
        self._num_clips, self._sums = num_clips, ensemble == "sum"
        # No score is the least: a maximum over a zero would lose negative ones.
        nothing = 0.0 if self._sums else -math.inf
        self.scores = torch.full(shape, nothing, dtype=torch.float64, device=device)
        self.labels = torch.zeros(
            shape if multi_label else shape[:1], dtype=torch.int64, device=device
        )
        self.clips = torch.zeros(shape[0], dtype=torch.int64, device=device)

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
        self.clips.index_add_(0, videos, torch.ones_like(videos))

    def gather(self) -> None:
        """Take in what the other ranks have; several may have clips of one video."""
        (sum_over_ranks if self._sums else max_over_ranks)(self.scores)
        max_over_ranks(self.labels)  # a rank without a clip of the video has zeros
        sum_over_ranks(self.clips)
        if self._sums:  # mAP ranks the sums of videos with each other: as if none had lost a clip
            self.scores *= (self._num_clips / self.clips.clamp(min=1).double()).view(-1, 1)

    @property
    def complete(self) -> bool:
        return bool((self.clips == self._num_clips).all())

    @property
    def probabilities(self) -> Tensor:
        return self.scores / self._num_clips if self._sums else self.scores

    def counts(self, max_bad: float) -> dict[str, float]:
        """The videos, and those of them that are left out; raises as `evaluate`."""
        videos, unreadable = len(self.clips), int((self.clips == 0).sum())
        if unreadable == videos:
            raise TooManyUnreadableError(
                f"none of the {videos} videos of the evaluation could be read; check "
                "DATA.PATH_PREFIX and the list"
            )
        partly = int((self.clips < self._num_clips).sum()) - unreadable
        check_count(unreadable + partly, videos, max_bad, "the evaluation")
        counts: dict[str, float] = {"videos": videos, "unreadable": unreadable}
        return counts | ({"partly_read": partly} if partly else {})
