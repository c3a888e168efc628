"""Classify boxes at the key frames of a video with a trained model."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch

from slowfast_patches.datasets.reading.formats import video_name
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError
from slowfast_patches.datasets.recipe_sampling import sampling_of
from slowfast_patches.extras.detection.box_scores import BoxScores
from slowfast_patches.extras.detection.key_frame_clips import KeyFrameClips
from slowfast_patches.extras.detection.lists import Box, KeyFrame, check_boxes, read_boxes
from slowfast_patches.tasks.task import Prediction


def predict_boxes(predictor: Any, path: str, file: Path) -> list[Prediction]:
    """Score the boxes of a video that are listed in a csv file in the format of AVA.

    Args:
        predictor: The `Predictor`.
        path: A video file or a folder of JPEG frames. Its name, without suffixes, selects the lines
            of `file`.
        file: The csv file of boxes.

    Returns:
        A pair for each box: a dict with "second" and "box", and the probabilities (classes,). For a
        box whose key frame cannot be read, the dict also has the reason as "error", and the
        probabilities are None.

    Raises:
        UnreadableVideoError: The video cannot be read or has no box.
    """
    recipe = predictor.recipe
    name = video_name(path)
    boxes = _boxes_by_video(file, recipe.model.num_classes).get(name)
    if not boxes:
        raise UnreadableVideoError(f"has no box in {file}")
    key_frames = [
        KeyFrame(path, 0, name, second, tuple(of_frame), ((),) * len(of_frame))
        for second, of_frame in sorted(boxes.items())
    ]
    dataset = KeyFrameClips(
        key_frames,
        [scan(path)],
        sampling_of(recipe, "test"),
        seed=0,
        views=(1, recipe.test.num_spatial_crops),
        evaluation_crop=recipe.data.test_crop_size,
        split="test",
        classes=recipe.model.num_classes,
    )
    scores = BoxScores(recipe, dataset, torch.device("cpu"))
    errors = dict[int, str]()
    for clip in range(len(dataset)):
        batch = dataset.__getitems__([clip])
        if batch["failures"]:
            errors[clip // dataset.num_clips] = batch["failures"][0][1]
        else:
            scores.add(batch, predictor.score(batch).cpu())
    means = iter(scores.scores / scores.weights[:, None])
    weights = iter(scores.weights.tolist())
    predictions = list[Prediction]()
    for number, key_frame in enumerate(key_frames):
        for box in key_frame.boxes:
            where: dict[str, Any] = {"second": key_frame.second, "box": box}
            mean = next(means)
            if next(weights) > 0:
                predictions.append((where, mean))
            else:
                predictions.append((where | {"error": errors[number]}, None))
    return predictions


@cache
def _boxes_by_video(file: Path, num_classes: int) -> dict[str, dict[int, dict[Box, None]]]:
    """Read the different boxes in a csv file, by video and by the second of the key frame."""
    boxes = dict[str, dict[int, dict[Box, None]]]()
    for name, second, box, _ in read_boxes(file, num_classes, has_labels=False):
        of_frame = boxes.setdefault(name, {}).setdefault(second, {})
        of_frame[box] = None
        check_boxes(len(of_frame), f"{name}, second {second}")
    return boxes
