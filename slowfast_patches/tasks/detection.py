"""Detection task: predict several labels for each box at a key frame."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from slowfast_patches.config.recipe import Recipe, plain
from slowfast_patches.registry import TaskFamily, register_task
from slowfast_patches.tasks.box_scores import BoxScores, read_annotations
from slowfast_patches.tasks.task import MultiLabel
from slowfast_patches.utils.distributed import sum_over_ranks


def _check_feature_map(recipe: Recipe) -> None:
    """Check that boxes can be pooled from the last feature map of the model."""
    if not recipe.model.family.is_resnet:
        raise ValueError(
            f"MODEL.ARCH {recipe.model.arch} is not possible with DETECTION.ENABLE True: the model "
            "has no feature map to pool boxes from. Use a convolutional model of PySlowFast."
        )
    scale = 4 * math.prod(stage[0] for stage in recipe.resnet.spatial_strides)
    if (given := recipe.detection.spatial_scale_factor) != scale:
        raise ValueError(
            f"DETECTION.SPATIAL_SCALE_FACTOR {given} does not match "
            f"RESNET.SPATIAL_STRIDES {plain(recipe.resnet.spatial_strides)}, which give the last "
            f"feature map a stride of {scale} pixels. Set DETECTION.SPATIAL_SCALE_FACTOR {scale}, "
            "or change the strides. Models for AVA have stride 1 and dilation 2 in the last stage."
        )


@register_task(
    "detection",
    TaskFamily(
        "boxes",
        ("DETECTION.ENABLE", True),
        {"MODEL.LOSS_FUNC": "bce", "MODEL.HEAD_ACT": "sigmoid"},
        {
            "TEST.NUM_ENSEMBLE_VIEWS": ((1,), "a key frame has only one temporal view"),
            "DATA.CLIP_SAMPLING": (("auto", "stride"), "clips are centred on key frames"),
            "DATA.ENSEMBLE_METHOD": (("sum",), "the scores of a box are averaged over crops"),
            "MIXUP.ENABLE": ((False,), "boxes cannot be blended"),
            "AUG.ENABLE": ((False,), "augmentations do not transform boxes"),
            "SOLVER.CLASS_WEIGHTS": (((),), "class weights are not supported for boxes"),
            "TRAIN.COMPILE": ((False,), "clips have different numbers of boxes"),
        },
        multi_label=True,
        metrics=("map",),
        check=_check_feature_map,
    ),
)
class Detection(MultiLabel):
    """Task with several labels for each box. An item is a box.

    A mini-batch of N clips contains `boxes` (m, 5) and multi-hot `labels` (m, C). A row of `boxes`
    is (clip index from 0 to N - 1, x1, y1, x2, y2), in pixels of the clip.
    """

    def check_files(self) -> None:
        read_annotations(self.recipe)

    def head_inputs(self, batch: Mapping[str, Any], device: torch.device) -> tuple[Tensor, ...]:
        return (batch["boxes"].to(device, non_blocking=True),)

    def items_of_clips(self, batch: Mapping[str, Any]) -> list[int]:
        clips = batch["boxes"][:, 0].long()
        counts: list[int] = clips.bincount(minlength=len(batch["clips"])).tolist()
        return counts

    def made_up_targets(self, clips: int, crop: int, rng: torch.Generator) -> dict[str, Tensor]:
        """Return one box for each clip that covers the whole clip, with random labels."""
        boxes = torch.tensor(
            [[float(clip), 0, 0, crop, crop] for clip in range(clips)], device="cpu"
        )
        return super().made_up_targets(clips, crop, rng) | {"boxes": boxes}

    def mean_items(self, batch: Mapping[str, Any], device: torch.device) -> Tensor | int:
        counts = torch.tensor([len(batch["boxes"]), 1.0], device=device)
        return torch.div(*sum_over_ranks(counts))

    def scores(self, dataset: Any, device: torch.device) -> BoxScores:
        return BoxScores(self.recipe, dataset, device)
