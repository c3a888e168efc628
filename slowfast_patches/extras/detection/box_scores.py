"""Collect scores of boxes at key frames, and compute average precision by AVA's protocol."""

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

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.extras.detection.key_frame_clips import Targets, classes_of
from slowfast_patches.extras.detection.keys import AvaKeys
from slowfast_patches.extras.detection.lists import annotation, host_ava
from slowfast_patches.tasks.scores import Evaluation, count_clips, multi_label_loss
from slowfast_patches.utils.distributed import broadcast_from_main, sum_over_ranks
from slowfast_patches.utils.errors import UserError, mistake_in

_LEAST = 1e-6
"""Minimum weight of a clip, so that a box has a score even if no clip shows any part of it."""


class BoxScores:
    """Collect the scores of all boxes of a split over clips and ranks.

    The score of a box is the weighted mean over the clips of the box's key frame. The weight of a
    clip is the fraction of the box that the clip shows. Clips may be added in any order.

    Attributes:
        scores: Sum of the weighted scores of M boxes and C classes, (M, C).
        weights: Sum of the weights of each box, (M,).
        clips: Number of readable clips of each key frame, (V,).
    """

    def __init__(self, recipe: Recipe, dataset: Any, device: torch.device) -> None:
        self._recipe = recipe
        self._dataset = dataset
        shape = (int(dataset.first_rows[-1]), recipe.model.num_classes)
        self.scores = torch.zeros(shape, dtype=torch.float64, device=device)
        self.weights = torch.zeros(shape[0], dtype=torch.float64, device=device)
        self.clips = torch.zeros(len(dataset.videos), dtype=torch.int64, device=device)

    def add(self, part: Mapping[str, Any], scores: Tensor) -> None:
        """Add the scores of the boxes in some clips.

        Args:
            part: Mini-batch of a detection data set, with m boxes.
            scores: Scores of the boxes, (m, C).
        """
        targets = Targets.of_labels(part["labels"])
        first_rows = torch.as_tensor(self._dataset.first_rows)[part["videos"]]
        rows = first_rows.repeat_interleave(targets.counts) + targets.places
        rows, shares, videos = (
            values.to(self.scores.device) for values in (rows, targets.shares, part["videos"])
        )
        weights = shares.double().clamp(min=_LEAST)
        self.scores.index_add_(0, rows, scores.double() * weights.view(-1, 1))
        self.weights.index_add_(0, rows, weights)
        self.clips.index_add_(0, videos, torch.ones_like(videos))

    def result(self) -> Evaluation:
        """Compute the metrics from the scores of all ranks. Every rank must call this.

        Raises:
            RunError: Too many videos could not be read.
            ValueError: A score is NaN, or no annotated box has a class of the label map.
        """
        for values in (self.scores, self.weights, self.clips):
            sum_over_ranks(values)
        counts = count_clips(self.clips, self._dataset.num_clips, self._recipe)
        scored = self.weights > 0
        scores = self.scores / self.weights.clamp(min=_LEAST).view(-1, 1)
        if scores.isnan().any():
            raise UserError(
                "mAP cannot be computed, because the model returns NaN. The training has diverged. "
                "Train with a lower SOLVER.BASE_LR."
            )
        precisions = broadcast_from_main(
            lambda: ava_precisions(self._recipe, self._dataset, scores.tolist(), scored.tolist())
        )
        known = [value for value in precisions if value is not None]
        if not known:
            raise UserError(
                "mAP cannot be computed, because no box in AVA.GROUNDTRUTH_FILE has a class of "
                "AVA.LABEL_MAP_FILE. Set both keys to files of the same data set."
            )
        key_frames = self._dataset.videos
        labels = [classes_of(key_frame, scores.shape[1]) for key_frame in key_frames]
        classes = torch.as_tensor(np.concatenate(labels), device=scores.device).long()
        return Evaluation(
            {"map": fmean(known)} | counts,
            scores,
            classes.cpu(),
            scored,
            precisions,
            [f"{k.name} {k.second} {box}" for k in key_frames for box in k.boxes],
            multi_label_loss(scores[scored], classes[scored]),
        )


def read_annotations(recipe: Recipe) -> tuple[list[Any], set[int], Any, set[str]]:
    """Read the files with which AVA is evaluated.

    The file AVA.EXCLUSION_FILE may be absent.

    Returns:
        PySlowFast's lists of categories, class ids, annotated boxes and excluded key frames.

    Raises:
        ValueError: A file cannot be read.
    """
    host = host_ava()
    label_map = annotation(recipe, AvaKeys.of(recipe).label_map_file)
    excluded = annotation(recipe, AvaKeys.of(recipe).exclusion_file)
    with mistake_in("check the keys AVA.*: AVA's annotations cannot be read", Exception):
        categories, classes = host.read_labelmap(str(label_map))
        truth = host.read_csv(str(annotation(recipe, AvaKeys.of(recipe).groundtruth_file)), classes)
        left_out = host.read_exclusions(str(excluded)) if excluded.is_file() else set()
    return categories, classes, truth, left_out


def ava_precisions(
    recipe: Recipe, dataset: Any, scores: Sequence[Sequence[float]], scored: Sequence[bool]
) -> list[float | None]:
    """Compute the average precision of each class at IoU 0.5 by the protocol of the AVA challenge.

    Args:
        recipe: The recipe. Its keys AVA.* name the label map, the ground truth and the excluded key
            frames.
        dataset: The data set of the boxes.
        scores: Mean scores of all boxes, (M, C).
        scored: Whether each box has a score.

    Returns:
        One value in percent for each class. None for a class that has no annotated boxes or is not
        in AVA.LABEL_MAP_FILE.

    Raises:
        ValueError: The annotations cannot be read.
    """
    host = host_ava()
    categories, classes, truth, left_out = read_annotations(recipe)
    # The host returns the precisions by name, and names may be equal.
    categories = [{"id": row["id"], "name": str(row["id"])} for row in categories]
    every_fourth = dataset.split == "val" and not AvaKeys.of(recipe).full_test_on_val
    unread = _unread(dataset.videos, scored)

    def counts(key: str) -> bool:
        name, _, second = key.rpartition(",")
        return not unread & {key, name} and not (every_fourth and int(second) % 4)

    truth = [{key: found for key, found in kind.items() if counts(key)} for kind in truth]
    detections: list[dict[str, list[Any]]] = [defaultdict(list) for _ in range(3)]
    boxes, labels, confidences = detections
    rows = zip(scores, scored, strict=True)
    for key_frame in dataset.videos:
        key = host.make_image_key(key_frame.name, key_frame.second)
        for left, top, right, bottom in key_frame.boxes:
            values, is_scored = next(rows)
            if is_scored:
                boxes[key] += [[top, left, bottom, right]] * len(classes)
                labels[key] += classes
                confidences[key] += [values[label - 1] for label in classes]
    with redirect_stdout(io.StringIO()):  # the host prints its results
        metrics = host.run_evaluation(categories, truth, detections, left_out)
    precisions: list[float | None] = [None] * recipe.model.num_classes
    for row in categories:
        value = metrics[f"PascalBoxes_PerformanceByCategory/AP@0.5IOU/{row['name']}"]
        precisions[row["id"] - 1] = None if np.isnan(value) else 100 * float(value)
    return precisions


def _unread(key_frames: Sequence[Any], scored: Sequence[bool]) -> set[str]:
    """Return the keys of the key frames without a score, and the names of videos without any.

    A key frame has no score if its clips cannot be read. All its boxes would count as missed.
    """
    host = host_ava()
    rows = iter(scored)
    unread = set[str]()
    read = set[str]()
    for key_frame in key_frames:
        has_score = [next(rows) for _ in key_frame.boxes]
        if any(has_score):
            read.add(key_frame.name)
        else:
            unread |= {host.make_image_key(key_frame.name, key_frame.second), key_frame.name}
    return unread - read
