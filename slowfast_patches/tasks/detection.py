"""Detection task: predict several labels for each box at a key frame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from slowfast_patches.tasks.box_scores import BoxScores, read_annotations
from slowfast_patches.tasks.task import MultiLabel
from slowfast_patches.utils.distributed import sum_over_ranks


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
