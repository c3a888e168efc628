"""Classify boxes at the key frames of a video with a trained model, and draw the boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from multigrid import empty_clips
from multigrid.sampling import frames_at
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.reading.jpeg import frame_files, read_jpeg
from slowfast_patches.datasets.reading.reader import ClipReader
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.scanned_video import Kind
from slowfast_patches.datasets.reading.unreadable import UnreadableVideoError
from slowfast_patches.datasets.reading.video_file import open_video, video_name
from slowfast_patches.datasets.sampling import sampling_of
from slowfast_patches.detection.clips import Targets, boxes_in_clip, frame_of, pack
from slowfast_patches.detection.lists import Box, read_boxes
from slowfast_patches.detection.scores import weights_of
from slowfast_patches.tasks.task import Prediction
from slowfast_patches.utils.pictures import COLOURS, new_figure, save_figure


def predict_boxes(predictor: Any, path: str, file: Path) -> list[Prediction]:
    """Score the boxes of a video that are listed in a csv file in the format of AVA.

    Args:
        predictor: The `Predictor`.
        path: A video file or a folder of JPEG frames. Its name, without suffixes, selects the lines
            of `file`.
        file: The csv file of boxes.

    Returns:
        A pair for each box: a dict with "second" and "box", and the probabilities (classes,).

    Raises:
        UnreadableVideoError: The video cannot be read, ends before a key frame, or has no box.
    """
    boxes = _boxes_by_video(file, predictor.recipe.model.num_classes).get(video_name(path))
    if not boxes:
        raise UnreadableVideoError(f"has no box in {file}")
    return [
        ({"second": second, "box": box}, scores)
        for second, of_frame in sorted(boxes.items())
        for box, scores in zip(
            of_frame, score_boxes(predictor, path, second, of_frame), strict=True
        )
    ]


@cache
def _boxes_by_video(file: Path, num_classes: int) -> dict[str, dict[int, list[Box]]]:
    """Read the boxes of a csv file, by video and by the second of the key frame."""
    boxes = dict[str, dict[int, list[Box]]]()
    for (name, second), of_frame in read_boxes(file, num_classes).items():
        boxes.setdefault(name, {})[second] = list(of_frame)
    return boxes


@torch.no_grad()
def score_boxes(predictor: Any, path: str, second: int, boxes: Sequence[Box]) -> Tensor:
    """Score boxes of a key frame with the test settings of the recipe.

    Args:
        predictor: The `Predictor`.
        path: The video file or the folder of JPEG frames.
        second: Time of the key frame in seconds, as in AVA's annotations.
        boxes: Boxes (x1, y1, x2, y2), as fractions of the width and height of the frame.

    Returns:
        The probability of each class for each box, (boxes, classes) float64.
    """
    recipe = predictor.recipe
    reader = ClipReader.of_recipe(recipe)
    scanned = scan(path, reader.limits)
    centre = frame_of(second, scanned.video)
    crops = recipe.test.num_spatial_crops
    crop = recipe.data.test_crop_size
    sampling = sampling_of(recipe, "test")
    plans = [
        sampling.evaluation_plan(scanned.video, part, (1, crops), crop, centre)
        for part in range(crops)
    ]
    clips = empty_clips(crops, recipe.data.num_frames, crop)
    reader.read_clips(path, scanned, plans, [clip.numpy() for clip in clips])
    sums = torch.zeros(len(boxes), recipe.model.num_classes, dtype=torch.float64)
    total = torch.zeros(len(boxes), 1, dtype=torch.float64)
    classes = np.zeros((len(boxes), 0), np.float32)
    for clip, plan in zip(clips, plans, strict=True):
        inside, parts = boxes_in_clip(np.asarray(boxes), plan)
        labels = torch.from_numpy(pack(parts[:, 0], inside, classes, len(boxes)))[None]
        flips = torch.zeros(1, dtype=torch.bool)
        scores = predictor.score({"clips": clip[None], "flips": flips, "labels": labels})
        weights = weights_of(Targets.of_labels(labels).shares).view(-1, 1)
        sums += scores.double().cpu() * weights
        total += weights
    return sums / total


def draw_boxes(recipe: Recipe, path: str, rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Draw the boxes of each key frame with their classes, and write a picture for each.

    Args:
        recipe: The recipe.
        path: The video.
        rows: The "second", the "box" and the "text" of each box.
        folder: Folder of the pictures.
    """
    for second, of_frame in groupby(rows, lambda row: row["second"]):
        picture = _frame(recipe, path, second)
        height, width = picture.shape[:2]
        figure, [axes] = new_figure(rows=1, width=8 * width / height, height=8)
        axes.imshow(picture)
        axes.set_axis_off()
        for number, row in enumerate(of_frame):
            x1, y1, x2, y2 = row["box"]
            colour = COLOURS[number % len(COLOURS)]
            across = np.array([x1, x2, x2, x1, x1]) * width - 0.5
            down = np.array([y1, y1, y2, y2, y1]) * height - 0.5
            axes.plot(across, down, color=colour, linewidth=3)
            axes.text(
                across[0], down[0], row["text"], color="white", va="top", bbox={"color": colour}
            )
        save_figure(figure, folder / f"{video_name(path)}_{second:04d}.png")


def _frame(recipe: Recipe, path: str, second: int) -> NDArray[np.uint8]:
    """Read the key frame at `second`, (H, W, 3) RGB."""
    limits = ClipReader.of_recipe(recipe).limits
    scanned = scan(path, limits)
    moment = np.array([frame_of(second, scanned.video)])
    wanted = int(frames_at(moment, scanned.video)[0])
    if scanned.kind == Kind.FRAMES:
        return read_jpeg(path, frame_files(path)[wanted], limits=limits)[..., ::-1]
    with open_video(path, limits) as file:
        for number, frame in enumerate(file.frames()):
            if number == wanted:
                return scanned.orientation.shown(
                    cast(NDArray[np.uint8], frame.to_ndarray(format="rgb24"))
                )
    raise UnreadableVideoError(f"cannot be decoded: it has no frame {wanted}")
