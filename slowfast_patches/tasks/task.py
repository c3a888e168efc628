"""Tasks on whole clips, and the interface of all tasks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from slowfast_patches.config.metrics import accuracy_ranks
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.tasks.losses import WeightedCrossEntropy, class_weights
from slowfast_patches.tasks.scores import (
    Evaluation,
    Judgement,
    VideoScores,
    average_precisions,
    topk_accuracy,
)

Transform = Callable[[Tensor, Tensor], Sequence[Tensor]]
"""Makes a network's pathways from the clips and flips of a mini-batch."""


class Scores(Protocol):
    """Scores of a split, collected over clips and ranks."""

    def add(self, part: Mapping[str, Tensor], scores: Tensor) -> None:
        """Add the outputs of the network for a part of a mini-batch."""

    def result(self) -> Evaluation:
        """Compute the metrics from the scores of all ranks. Every rank must call this."""


class Task(ABC):
    """What a model predicts: its inputs besides the clips, its loss, its scores and its metrics.

    An item is what has one row of scores and labels. In this class, that is a clip.

    Args:
        recipe: The recipe.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    # Inputs.

    def part(self, batch: Mapping[str, Any], clips: slice) -> dict[str, Tensor]:
        """Return the part of a mini-batch that belongs to some of its clips."""
        names = ("clips", "flips", "videos", "labels")
        return {name: batch[name][clips] for name in names if name in batch}

    def head_inputs(self, batch: Mapping[str, Any], device: torch.device) -> tuple[Tensor, ...]:
        """Return the inputs of the network besides its pathways."""
        return ()

    def arguments(
        self, batch: Mapping[str, Any], transform: Transform, device: torch.device
    ) -> tuple[Any, ...]:
        """Return the arguments of the network for a mini-batch or a part of it."""
        pathways = transform(batch["clips"], batch["flips"])
        return (pathways, *self.head_inputs(batch, device))

    def items_of_clips(self, batch: Mapping[str, Any]) -> list[int]:
        """Return the number of items of each clip."""
        return [1] * len(batch["clips"])

    def made_up_targets(self, clips: int, crop: int, rng: torch.Generator) -> dict[str, Tensor]:
        """Return what a mini-batch has besides its clips, with random labels."""
        return {"labels": self._random_labels(clips, rng)}

    @abstractmethod
    def _random_labels(self, count: int, rng: torch.Generator) -> Tensor:
        """Draw the labels of `count` items."""

    # Training.

    @abstractmethod
    def loss(self, label_counts: Sequence[int] | None = None) -> nn.Module:
        """Return the training loss, the mean over items of logits (N, C) and their labels.

        Args:
            label_counts: Number of training videos of each class, for SOLVER.CLASS_WEIGHTS. Without
                them, classes are not weighted.
        """

    def mean_items(self, batch: Mapping[str, Any], device: torch.device) -> Tensor | int:
        """Return the mean number of items in the mini-batches of all processes.

        Gradients are averaged over the processes with equal weights. If each process divides the
        sum of its losses by this number, the result is the mean over all items. Every process must
        call this.
        """
        return len(batch["clips"])

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Join the scores or labels of micro-batches. Micro-batch p of P has every P-th clip."""
        return torch.stack(tuple(parts), 1).flatten(0, 1)

    @abstractmethod
    def count_right(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the number of items whose label has the highest score, or NaN."""

    # Evaluation.

    def scores(self, dataset: Any, device: torch.device) -> Scores:
        """Return an empty collection of the scores of a split."""
        return VideoScores(self.recipe, dataset, device, self.judge)

    @abstractmethod
    def judge(self, scores: Tensor, labels: Tensor) -> Judgement:
        """Compute the metrics of scores (V, C)."""


class SingleLabel(Task):
    """One label for each clip, trained with cross entropy and judged by accuracy."""

    def _random_labels(self, count: int, rng: torch.Generator) -> Tensor:
        return torch.randint(0, self.recipe.model.num_classes, (count,), generator=rng)

    def loss(self, label_counts: Sequence[int] | None = None) -> nn.Module:
        """Return cross entropy, which takes classes (N,) or class probabilities (N, C)."""
        smoothing = self.recipe.model.label_smoothing
        given = self.recipe.solver.class_weights
        if given and label_counts is not None:
            videos = torch.tensor(label_counts, dtype=torch.float64)
            weights = class_weights(given, label_counts, videos / videos.sum())
            return WeightedCrossEntropy(weights, smoothing)
        return nn.CrossEntropyLoss(label_smoothing=smoothing)

    def count_right(self, scores: Tensor, labels: Tensor) -> Tensor:
        wanted = labels if labels.ndim == 1 else labels.argmax(1)  # of mixed ones, the larger
        return (scores.argmax(1) == wanted).sum()

    def judge(self, scores: Tensor, labels: Tensor) -> Judgement:
        ranks = accuracy_ranks(scores.shape[1])
        return Judgement({f"top{k}": topk_accuracy(scores, labels, k) for k in ranks})


class MultiLabel(Task):
    """Several labels for each clip, (C,) multi-hot, trained with a binary loss, judged by mAP."""

    def _random_labels(self, count: int, rng: torch.Generator) -> Tensor:
        shape = (count, self.recipe.model.num_classes)
        return torch.randint(0, 2, shape, generator=rng).float()

    def loss(self, label_counts: Sequence[int] | None = None) -> nn.Module:
        """Return binary cross entropy, averaged over the classes too. Labels (N, C) are floats."""
        given = self.recipe.solver.class_weights
        if given and label_counts is not None:
            classes = len(label_counts)
            shares = torch.full((classes,), 1 / classes, dtype=torch.float64)
            return nn.BCEWithLogitsLoss(class_weights(given, label_counts, shares))
        return nn.BCEWithLogitsLoss()

    def count_right(self, scores: Tensor, labels: Tensor) -> Tensor:
        return torch.full((), math.nan, device=scores.device)

    def judge(self, scores: Tensor, labels: Tensor) -> Judgement:
        precisions = average_precisions(scores, labels)
        return Judgement({"map": fmean(p for p in precisions if p is not None)}, precisions)
