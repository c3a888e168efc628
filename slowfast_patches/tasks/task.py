"""Interface of all tasks, and the tasks that label whole clips."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slowfast_patches.config.metrics import metric_names
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.registry import TaskSpec, register_task
from slowfast_patches.tasks.losses import WeightedCrossEntropy, class_weights
from slowfast_patches.tasks.scores import (
    ComputedMetrics,
    VideoScores,
    average_precisions,
    label_loss,
    multi_label_loss,
    topk_accuracy,
)
from slowfast_patches.utils.errors import UserError

Prediction = tuple[dict[str, Any], Tensor | None]
"""Description of what was scored in a video, and the probability of each class, (classes,).

For a part that cannot be read, the description has the reason as "error", and there are no
probabilities."""

Transform = Callable[[Tensor, Tensor], Sequence[Tensor]]
"""Function that converts the clips and flips of a mini-batch to the pathways of a network."""


@register_task(
    "single_label",
    TaskSpec(
        "one label",
        ("DATA.MULTI_LABEL", False),
        {"MODEL.LOSS_FUNC": "cross_entropy", "MODEL.HEAD_ACT": "softmax"},
    ),
)
class Task:
    """Task of a model: arguments of the network, loss, collection of scores, and metrics.

    This class is the task with one label for each clip. Subclasses are other tasks. Register them
    with `slowfast_patches.registry.register_task`.

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

    def arguments(
        self, batch: Mapping[str, Any], transform: Transform, device: torch.device
    ) -> tuple[Any, ...]:
        """Return the arguments of the network for a mini-batch or a micro-batch."""
        return (transform(batch["clips"], batch["flips"]),)

    def targets(self, batch: Mapping[str, Any], device: torch.device) -> Tensor:
        """Return the targets of the loss, with a row for each row of the network's output."""
        labels: Tensor = batch["labels"].to(device, non_blocking=True)
        return labels

    def rows_of_clips(self, batch: Mapping[str, Any]) -> list[int]:
        """Return the number of rows of the network's output for each clip. By default 1."""
        return [1] * len(batch["clips"])

    def random_labels(self, clips: int, crop: int, rng: torch.Generator) -> Tensor:
        """Return random labels of a mini-batch.

        Args:
            clips: Number of clips.
            crop: Crop size of the clips in pixels.
            rng: Generator of the labels.
        """
        classes = self.recipe.model.num_classes
        return torch.randint(0, classes, (clips,), generator=rng)

    def classes(self, label: Any) -> list[int]:
        """Return the class indices in the label of a clip, as a data set returns it."""
        return [int(label)]

    # Training.

    def loss(self, label_counts: Sequence[int] | None = None) -> nn.Module:
        """Return the module of the training loss, which averages over the rows.

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

    def loss_normalizer(self, batch: Mapping[str, Any], device: torch.device) -> Tensor | int:
        """Return the number of rows for the mini-batch, averaged over all processes.

        DDP averages gradients over the processes with equal weights. If each process divides the
        sum of its losses by this number, the result is the gradient of the mean over all rows.
        Every process must call this.
        """
        return len(batch["clips"])

    def count_right(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Count the rows whose label has the highest score. Return NaN for multi-label tasks."""
        wanted = (
            labels if labels.ndim == 1 else labels.argmax(1)
        )  # for a mixed label, the class with the larger share
        return (scores.argmax(1) == wanted).sum()

    # Evaluation.

    def scores(self, dataset: Any, device: torch.device) -> Any:
        """Return an object with the methods of `VideoScores` to collect the scores of a split."""
        return VideoScores(self.recipe, dataset, device, self.compute_metrics)

    def compute_metrics(self, scores: Tensor, labels: Tensor) -> ComputedMetrics:
        """Compute the metrics from scores (V, C), and labels (V,) or (V, C)."""
        ranks = [int(name.removeprefix("top")) for name in metric_names(self.recipe)]
        metrics = {f"top{k}": topk_accuracy(scores, labels, k) for k in ranks}
        return ComputedMetrics(metrics, loss=label_loss(scores, labels))

    # Prediction, for tasks whose network needs more than the clip (`TaskSpec.scores_clips`).

    def predict(self, predictor: Any, path: str, file: Path) -> list[Prediction]:
        """Score the parts of a video that a file describes.

        Args:
            predictor: The `slowfast_patches.train.predict.Predictor`.
            path: The video.
            file: The file of `multigrid-predict --targets`.

        Raises:
            UnreadableVideoError: The video cannot be read, or `file` describes nothing in it.
            UserError: The class of the task does not define this method.
        """
        raise UserError(
            f"the task {self.recipe.task} cannot predict videos, because its class "
            f"{type(self).__name__} does not define `predict`. Define it, or remove --targets."
        )


@register_task(
    "multi_label",
    TaskSpec(
        "several labels",
        ("DATA.MULTI_LABEL", True),
        {"MODEL.LOSS_FUNC": "bce_logit", "MODEL.HEAD_ACT": "sigmoid"},
        multi_label=True,
        metrics=("map",),
    ),
)
class MultiLabel(Task):
    """Task with several labels per clip, trained by binary cross entropy and evaluated by mAP.

    The labels of a clip are multi-hot, (C,).
    """

    def random_labels(self, clips: int, crop: int, rng: torch.Generator) -> Tensor:
        shape = (clips, self.recipe.model.num_classes)
        return torch.randint(0, 2, shape, generator=rng).float()

    def classes(self, label: Any) -> list[int]:
        numbers: list[int] = np.flatnonzero(np.atleast_2d(label).any(0)).tolist()
        return numbers

    def loss(self, label_counts: Sequence[int] | None = None) -> nn.Module:
        """Return the module of the training loss, which averages over rows and classes.

        The inputs of the module are logits and float labels, both (N, C).
        """
        given = self.recipe.solver.class_weights
        if given and label_counts is not None:
            weights = class_weights(given, label_counts, shares=[1] * len(label_counts))
            return nn.BCEWithLogitsLoss(weights)
        return nn.BCEWithLogitsLoss()

    def count_right(self, scores: Tensor, labels: Tensor) -> Tensor:
        return torch.full((), math.nan, device=scores.device)

    def compute_metrics(self, scores: Tensor, labels: Tensor) -> ComputedMetrics:
        precisions = average_precisions(scores, labels)
        mean = fmean(p for p in precisions if p is not None)
        return ComputedMetrics({"map": mean}, precisions, multi_label_loss(scores, labels))
