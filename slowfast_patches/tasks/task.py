"""Tasks on whole clips, and the interface of all tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from slowfast_patches.config.metrics import accuracy_ranks
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.tasks.losses import WeightedCrossEntropy, class_weights
from slowfast_patches.tasks.scores import (
    Judgement,
    VideoScores,
    average_precisions,
    topk_accuracy,
)

Transform = Callable[[Tensor, Tensor], Sequence[Tensor]]
"""Makes a network's pathways from the clips and flips of a mini-batch."""


class Task:
    """What a model learns: its inputs besides the clips, its loss, its scores and its metrics.

    An item is what has a row of scores and labels. This class is the task of one label for each
    clip, where an item is a clip. Other tasks override what differs.

    Args:
        recipe: The recipe.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    # Inputs.

    def slice_batch(self, batch: Mapping[str, Any], clips: slice) -> dict[str, Tensor]:
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
        classes = self.recipe.model.num_classes
        return {"labels": torch.randint(0, classes, (clips,), generator=rng)}

    # Training.

    def loss(self, label_counts: Sequence[int] | None = None) -> nn.Module:
        """Return the training loss, the mean over items of logits (N, C) and their labels.

        Labels are classes (N,), or class probabilities (N, C).

        Args:
            label_counts: Number of training videos of each class, for SOLVER.CLASS_WEIGHTS. Without
                them, classes are not weighted.
        """
        smoothing = self.recipe.model.label_smoothing
        given = self.recipe.solver.class_weights
        if given and label_counts is not None:
            weights = class_weights(given, label_counts, shares=label_counts)
            return WeightedCrossEntropy(weights, smoothing)
        return nn.CrossEntropyLoss(label_smoothing=smoothing)

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

    def count_right(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the number of items whose label has the highest score, or NaN."""
        wanted = labels if labels.ndim == 1 else labels.argmax(1)  # of mixed ones, the larger
        return (scores.argmax(1) == wanted).sum()

    # Evaluation.

    def scores(self, dataset: Any, device: torch.device) -> Any:
        """Return an empty collection of the scores of a split, with `VideoScores`' methods."""
        return VideoScores(self.recipe, dataset, device, self.judge)

    def judge(self, scores: Tensor, labels: Tensor) -> Judgement:
        """Compute the metrics of scores (V, C)."""
        ranks = accuracy_ranks(scores.shape[1])
        return Judgement({f"top{k}": topk_accuracy(scores, labels, k) for k in ranks})


class MultiLabel(Task):
    """Several labels for each clip, multi-hot (C,), with a binary loss and mAP."""

    def made_up_targets(self, clips: int, crop: int, rng: torch.Generator) -> dict[str, Tensor]:
        shape = (clips, self.recipe.model.num_classes)
        return {"labels": torch.randint(0, 2, shape, generator=rng).float()}

    def loss(self, label_counts: Sequence[int] | None = None) -> nn.Module:
        """Return the training loss, averaged over the classes too. Labels (N, C) are floats."""
        given = self.recipe.solver.class_weights
        if given and label_counts is not None:
            weights = class_weights(given, label_counts, shares=[1] * len(label_counts))
            return nn.BCEWithLogitsLoss(weights)
        return nn.BCEWithLogitsLoss()

    def count_right(self, scores: Tensor, labels: Tensor) -> Tensor:
        return torch.full((), math.nan, device=scores.device)

    def judge(self, scores: Tensor, labels: Tensor) -> Judgement:
        precisions = average_precisions(scores, labels)
        return Judgement({"map": fmean(p for p in precisions if p is not None)}, precisions)
