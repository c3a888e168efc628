"""Charades: activities at home, several at a time, labelled frame by frame."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from slowfast.datasets.build import DATASET_REGISTRY

from multigrid import ClipPlan
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.clips import ClipDataset
from slowfast_patches.datasets.lists.frame_list import FrameVideo

__all__ = ["Charades"]


@DATASET_REGISTRY.register()
class Charades(ClipDataset):
    """Clips of frame lists, at a stride, with a multi-hot label (NUM_CLASSES,) float32.

    A training clip has the labels of all frames from its first to its last, also of those between
    that are not read; a clip of validation or testing has those of the whole video. The views of a
    test are spread to the video's end, as in the later releases of PySlowFast.
    """

    name = "charades"
    counts_frames = True
    views_to_end = True

    def __init__(self, recipe: Recipe, split: str) -> None:
        super().__init__(recipe, split)
        self._classes = int(recipe.model.num_classes)

    def _label(self, video: FrameVideo, plan: ClipPlan | None) -> NDArray[np.float32]:
        if self.split == "train" and plan is not None:
            labels = video.labels(int(plan.positions[0]), int(plan.positions[-1]))
        else:
            labels = video.labels()
        vector = np.zeros(self._classes, np.float32)
        vector[list(labels)] = 1
        return vector
