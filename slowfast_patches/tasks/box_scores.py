"""Scores of boxes at key frames, and their average precision by AVA's protocol."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slowfast_patches import patching
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.ava_list import Box, annotation
from slowfast_patches.tasks.scores import Evaluation, count_clips
from slowfast_patches.utils.distributed import broadcast_from_main, sum_over_ranks

_LEAST = 1e-6
"""Weight of a clip that shows nothing of a box: it counts where no clip shows any."""


class BoxScores:
    """Scores of all boxes of a split, (M, C), collected over clips and ranks.

    A box's score is the mean over the clips of its key frame, weighted by how much of the box each
    clip shows. Clips may come in any order.
    """

    def __init__(self, recipe: Recipe, dataset: Any, device: torch.device) -> None:
        self._recipe = recipe
        self._dataset = dataset
        shape = (int(dataset.first_rows[-1]), recipe.model.num_classes)
        self.scores = torch.zeros(shape, dtype=torch.float64, device=device)
        self.weights = torch.zeros(shape[0], dtype=torch.float64, device=device)
        self.clips = torch.zeros(len(dataset.videos), dtype=torch.int64, device=device)

    def add(self, part: Mapping[str, Tensor], scores: Tensor) -> None:
        """Add the clips of a mini-batch, with the scores of their boxes."""
        device = self.scores.device
        rows, shares, videos = (part[name].to(device) for name in ("rows", "shares", "videos"))
        weights = weights_of(shares)
        self.scores.index_add_(0, rows, scores.double() * weights.view(-1, 1))
        self.weights.index_add_(0, rows, weights)
        self.clips.index_add_(0, videos, torch.ones_like(videos))

    def result(self) -> Evaluation:
        """Compute metrics from the scores of all ranks. Every rank must call this.

        Raises:
            TooManyUnreadableError: too many videos could not be read.
            ValueError: a score is NaN, or no annotated box has a class of the label map.
        """
        for values in (self.scores, self.weights, self.clips):
            sum_over_ranks(values)
        counts = count_clips(self.clips, self._dataset.num_clips, self._recipe)
        scored = self.weights > 0
        scores = self.scores / self.weights.clamp(min=_LEAST).view(-1, 1)
        if scores.isnan().any():
            raise ValueError(
                "no mAP: the model gives NaN: the training diverged; lower SOLVER.BASE_LR"
            )
        of_file = broadcast_from_main(lambda: self._judged(scores.cpu(), scored.tolist()))
        known = [value for value in of_file if value is not None]
        if not known:
            raise ValueError(
                "no mAP: AVA.GROUNDTRUTH_FILE has no box with a class of the label map"
            )
        key_frames = self._dataset.videos
        labels = [self._dataset._label(key_frame, None) for key_frame in key_frames]
        return Evaluation(
            {"map": fmean(known)} | counts,
            scores,
            torch.as_tensor(np.concatenate(labels)).long(),
            scored,
            of_file,
            [f"{k.name} {k.second} {box}" for k in key_frames for box in k.boxes],
        )

    def _judged(self, scores: Tensor, scored: list[bool]) -> list[float | None]:
        """Return the average precision of each class."""
        found = dict[str, list[tuple[Box, list[float]]]]()
        rows = zip(scores.tolist(), scored, strict=True)
        for key_frame in self._dataset.videos:
            pairs = [(box, *next(rows)) for box in key_frame.boxes]
            key = f"{key_frame.name},{key_frame.second:04d}"
            found[key] = [(box, values) for box, values, is_scored in pairs if is_scored]
        every_fourth = self._dataset.split == "val" and not self._recipe.ava.full_test_on_val
        return ava_precisions(self._recipe, found, every_fourth=every_fourth)


def weights_of(shares: Tensor) -> Tensor:
    """Return the weights of clips, (M,), from the shares of the boxes that they show."""
    return shares.double().clamp(min=_LEAST)


def ava_precisions(
    recipe: Recipe,
    found: Mapping[str, Sequence[tuple[Box, Sequence[float]]]],
    *,
    every_fourth: bool,
) -> list[float | None]:
    """Compute the average precision at IoU 0.5 by class, as in AVA's challenge.

    Args:
        recipe: names the label map, the ground truth and the excluded key frames.
        found: boxes with the scores of all classes, by key frame, such as "name,0902".
        every_fourth: evaluate only the key frames of every fourth second.

    Returns:
        Per cent by class. None for a class that has no annotated boxes or is not in
        AVA.LABEL_MAP_FILE.

    Raises:
        ValueError: the annotations cannot be read.
    """
    patching.restore_numpy_names()
    from slowfast.utils import ava_eval_helper as host

    files = (recipe.ava.label_map_file, recipe.ava.groundtruth_file, recipe.ava.exclusion_file)
    label_map, truth_file, excluded = (str(annotation(recipe, name)) for name in files)
    try:
        categories, classes = host.read_labelmap(label_map)
        truth = host.read_csv(truth_file, classes)
        left_out = host.read_exclusions(excluded) if recipe.ava.exclusion_file else set()
    except (OSError, ValueError, AssertionError, TypeError) as error:
        raise ValueError(
            f"AVA's annotations cannot be read: {error}; see the keys AVA.*"
        ) from error
    if every_fourth:
        kept = [key for key in truth[0] if int(key.split(",")[1]) % 4 == 0]
        truth = [{key: of_kind[key] for key in kept} for of_kind in truth]
    detections: list[dict[str, list[Any]]] = [defaultdict(list) for _ in range(3)]
    for key, of_frame in found.items():
        for (left, top, right, bottom), scores in of_frame:
            for label in classes:
                row = ([top, left, bottom, right], label, scores[label - 1])
                for of_kind, value in zip(detections, row, strict=True):
                    of_kind[key].append(value)
    with redirect_stdout(io.StringIO()):  # it prints
        metrics = host.run_evaluation(categories, truth, detections, left_out)
    precisions: list[float | None] = [None] * recipe.model.num_classes
    for row in categories:
        value = metrics[f"PascalBoxes_PerformanceByCategory/AP@0.5IOU/{row['name']}"]
        precisions[row["id"] - 1] = None if np.isnan(value) else 100 * float(value)
    return precisions
