"""Detection task: predict several labels for each box at a key frame."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slowfast_patches.config.recipe import Recipe, plain
from slowfast_patches.extras.detection.box_scores import BoxScores, read_annotations
from slowfast_patches.extras.detection.key_frame_clips import Targets
from slowfast_patches.extras.detection.keys import DetectionKeys
from slowfast_patches.extras.detection.predict_boxes import predict_boxes
from slowfast_patches.tasks.task import MultiLabel, Prediction, Transform
from slowfast_patches.utils.distributed import sum_over_ranks
from slowfast_patches.utils.errors import UserError


def check_feature_map(recipe: Recipe) -> None:
    """Check that boxes can be pooled from the last feature map of the model."""
    if not recipe.model.spec.is_resnet:
        raise UserError(
            f"MODEL.ARCH {recipe.model.arch} is not possible with DETECTION.ENABLE True: the model "
            "has no feature map to pool boxes from. Use a convolutional model of PySlowFast."
        )
    scale = 4 * math.prod(stage[0] for stage in recipe.resnet.spatial_strides)
    if (given := DetectionKeys.of(recipe).spatial_scale_factor) != scale:
        raise UserError(
            f"DETECTION.SPATIAL_SCALE_FACTOR {given} does not match "
            f"RESNET.SPATIAL_STRIDES {plain(recipe.resnet.spatial_strides)}, which give the last "
            f"feature map a stride of {scale} pixels. Set DETECTION.SPATIAL_SCALE_FACTOR {scale}, "
            "or change the strides. Models for AVA have stride 1 and dilation 2 in the last stage."
        )


class Detection(MultiLabel):
    """Task with several labels for each box. The network returns one row of logits for each box.

    The labels of a mini-batch are those of `KeyFrameClips`.
    """

    def check_files(self) -> None:
        read_annotations(self.recipe)

    def arguments(
        self, batch: Mapping[str, Any], transform: Transform, device: torch.device
    ) -> tuple[Any, ...]:
        boxes = Targets.of_labels(batch["labels"]).boxes.to(device, non_blocking=True)
        return (*super().arguments(batch, transform, device), boxes)

    def targets(self, batch: Mapping[str, Any], device: torch.device) -> Tensor:
        return Targets.of_labels(batch["labels"]).classes.to(device, non_blocking=True)

    def rows_of_clips(self, batch: Mapping[str, Any]) -> list[int]:
        counts: list[int] = Targets.of_labels(batch["labels"]).counts.tolist()
        return counts

    def loss_normalizer(self, batch: Mapping[str, Any], device: torch.device) -> Tensor | int:
        counts = torch.tensor([sum(self.rows_of_clips(batch)), 1.0], device=device)
        return torch.div(*sum_over_ranks(counts))

    def random_labels(self, clips: int, crop: int, rng: torch.Generator) -> Tensor:
        """Return labels with one box for each clip.

        The box covers the whole clip, and its classes are random.
        """
        box = torch.tensor([1.0, 0, 0, crop, crop], device="cpu").expand(clips, 5)
        return torch.cat([box, super().random_labels(clips, crop, rng)], 1)[:, None]

    def classes(self, label: Any) -> list[int]:
        return super().classes(Targets.of_labels(torch.as_tensor(label)[None]).classes)

    def scores(self, dataset: Any, device: torch.device) -> BoxScores:
        return BoxScores(self.recipe, dataset, device)

    def predict(self, predictor: Any, path: str, file: Path) -> list[Prediction]:
        return predict_boxes(predictor, path, file)
