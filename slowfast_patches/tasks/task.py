"""Interface of all tasks, and the tasks that label whole clips."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from slowfast_patches.config.metrics import metric_names
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.registry import TaskFamily, register_task
from slowfast_patches.tasks.losses import WeightedCrossEntropy, class_weights
from slowfast_patches.tasks.scores import (
    Judgement,
    VideoScores,
    average_precisions,
    topk_accuracy,
)

Transform = Callable[[Tensor, Tensor], Sequence[Tensor]]
"""Function that converts the clips and flips of a mini-batch to the pathways of a network."""


@register_task(
    "single_label",
    TaskFamily(
        "one label",
        ("DATA.MULTI_LABEL", False),
        {"MODEL.LOSS_FUNC": "cross_entropy", "MODEL.HEAD_ACT": "softmax"},
    ),
)
class Task:
    """Task of a model: additional inputs, the loss, the collection of scores, and the metrics.

    An item is what the model scores: a clip or a box. This class is the task with one label for
    each clip. Subclasses are other tasks.

    Args:
        recipe: The recipe.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    def check_files(self) -> None:
        """Check the files that only the evaluation reads, so that mistakes are found in advance.

        Raises:
            ValueError: A file cannot be read.
        """

    # Inputs.

    def head_inputs(self, batch: Mapping[str, Any], device: torch.device) -> tuple[Tensor, ...]:
        """Return the arguments of the network that follow the pathways."""
        return ()

    def arguments(
        self, batch: Mapping[str, Any], transform: Transform, device: torch.device
    ) -> tuple[Any, ...]:
        """Return all arguments of the network for a mini-batch or a micro-batch."""
        pathways = transform(batch["clips"], batch["flips"])
        return (pathways, *self.head_inputs(batch, device))

    def items_of_clips(self, batch: Mapping[str, Any]) -> list[int]:
        """Return the number of items (clips or boxes) of each clip."""
        return [1] * len(batch["clips"])

    def made_up_targets(self, clips: int, crop: int, rng: torch.Generator) -> dict[str, Tensor]:
        """Return the entries of a mini-batch that depend on the task, with random labels.

        Args:
            clips: Number of clips.
            crop: Crop size of the clips in pixels.
            rng: Generator of the labels.
        """
        classes = self.recipe.model.num_classes
        return {"labels": torch.randint(0, classes, (clips,), generator=rng)}

    # Training.

    def loss(self, label_counts: Sequence[int] | None = None) -> nn.Module:
        """Return the module of the training loss, which averages over the items.

        The inputs of the module are logits (N, C), and class indices (N,) or class probabilities
        (N, C).

        Args:
            label_counts: Number of training videos of each class, for SOLVER.CLASS_WEIGHTS. If
                None, classes have equal weights.
        """
        smoothing = self.recipe.model.label_smoothing
        given = self.recipe.solver.class_weights
        if given and label_counts is not None:
            weights = class_weights(given, label_counts, shares=label_counts)
            return WeightedCrossEntropy(weights, smoothing)
        return nn.CrossEntropyLoss(label_smoothing=smoothing)

    def mean_items(self, batch: Mapping[str, Any], device: torch.device) -> Tensor | int:
        """Return the number of items in the mini-batch, averaged over all processes.

        DDP averages gradients over the processes with equal weights. If each process divides the
        sum of its losses by this number, the result is the gradient of the mean over all items.
        Every process must call this.
        """
        return len(batch["clips"])

    def count_right(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Count the items whose label has the highest score. Return NaN for multi-label tasks."""
        wanted = (
            labels if labels.ndim == 1 else labels.argmax(1)
        )  # of mixed labels, take the larger
        return (scores.argmax(1) == wanted).sum()

    # Evaluation.

    def scores(self, dataset: Any, device: torch.device) -> Any:
        """Return an object with the methods of `VideoScores` to collect the scores of a split."""
        return VideoScores(self.recipe, dataset, device, self.judge)

    def judge(self, scores: Tensor, labels: Tensor) -> Judgement:
        """Compute the metrics from scores (V, C), and labels (V,) or (V, C)."""
        ranks = [int(name.removeprefix("top")) for name in metric_names(self.recipe)]
        return Judgement({f"top{k}": topk_accuracy(scores, labels, k) for k in ranks})


@register_task(
    "multi_label",
    TaskFamily(
        "several labels",
        ("DATA.MULTI_LABEL", True),
        {"MODEL.LOSS_FUNC": "bce_logit", "MODEL.HEAD_ACT": "sigmoid"},
        multi_label=True,
        metrics=("map",),
    ),
)
class MultiLabel(Task):
    """Task with several labels for each clip, trained by binary cross entropy and judged by mAP.

    The labels of a clip are multi-hot, (C,).
    """

    def made_up_targets(self, clips: int, crop: int, rng: torch.Generator) -> dict[str, Tensor]:
        shape = (clips, self.recipe.model.num_classes)
        return {"labels": torch.randint(0, 2, shape, generator=rng).float()}

    def loss(self, label_counts: Sequence[int] | None = None) -> nn.Module:
        """Return the module of the training loss, which averages over items and classes.

        The inputs of the module are logits and float labels, both (N, C).
        """
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
