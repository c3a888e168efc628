"""Data set of clips around key frames with bounding boxes.

The boxes get the same resize, crop and flip as the frames.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from multigrid import ClipPlan, Video
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.clip_dataset import ClipDataset, Draw
from slowfast_patches.datasets.reading.scanned_video import ScannedVideo
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError
from slowfast_patches.extras.detection.lists import FIRST_SECOND, KeyFrame, read_sources

logger = logging.getLogger(__name__)

_MAX_REDRAWS = 10
"""Maximum number of times that a clip without a visible box is drawn again. The last of these crops
is centred on the first box."""
_MIN_VISIBLE = 0.25
"""A box is used in training if the clip shows at least this fraction of the box, or if the visible
part covers at least this fraction of the clip."""
_UNUSED = -1.0
"""Value of all fields in a row that has no box."""

Floats = NDArray[np.floating[Any]]


class Targets(NamedTuple):
    """Boxes of the clips of a mini-batch.

    Attributes:
        counts: Number of boxes of each clip, (n,).
        boxes: (m, 5). Each row is the index of the clip in the mini-batch, then the corners x1, y1,
            x2, y2 in pixels of the clip, after resize, crop and flip.
        classes: Multi-hot labels of each box, (m, classes).
        shares: Fraction of each box that its clip shows, (m,).
        places: Index of each box among the boxes of its key frame, (m,).
    """

    counts: Tensor
    boxes: Tensor
    classes: Tensor
    shares: Tensor
    places: Tensor

    @classmethod
    def of_labels(cls, labels: Tensor) -> Targets:
        """Unpack the labels of a mini-batch, (n, K, 5 + classes), each made by `pack`."""
        used = labels[..., 0] != _UNUSED
        clips, places = used.nonzero(as_tuple=True)
        rows = labels[used]
        boxes = torch.cat([clips[:, None].to(rows), rows[:, 1:5]], 1)
        return cls(used.sum(1), boxes, rows[:, 5:], rows[:, 0], places)


def pack(shares: Floats, boxes: Floats, classes: Floats, size: int) -> Floats:
    """Pack the boxes of a clip into an array (size, 5 + classes), the label of the clip.

    Args:
        shares: Fraction of each box that the clip shows, (k,).
        boxes: Corners in pixels of the clip, (k, 4).
        classes: Multi-hot labels, (k, classes).
        size: Number of rows K of the array, the same for all clips. Rows from k on have no box.
    """
    packed = np.full((size, 5 + classes.shape[1]), _UNUSED, np.float32)
    packed[: len(boxes)] = np.column_stack([shares, boxes, classes])
    return packed


class KeyFrameClips(ClipDataset):
    """Data set of clips around key frames with bounding boxes, for action detection.

    The attribute `videos` is the list of `KeyFrame`s. The label of a clip is an array that
    `Targets.of_labels` unpacks.

    A training clip has only the visible boxes. A box is visible if the clip shows at least a
    quarter of the box, or if the box covers at least a quarter of the clip. A training clip without
    a visible box is drawn again, and the field `resampled` says how often. An evaluation clip has
    all boxes of the key frame.
    """

    def __init__(self, videos: Sequence[Any], *args: Any, **options: Any) -> None:
        super().__init__(videos, *args, **options)
        counts = [len(key_frame.boxes) for key_frame in self.videos]
        self._most = max(counts)
        self.first_rows: NDArray[np.int64] = np.cumsum([0, *counts])
        """Index of the first box of each key frame, followed by the total number of boxes."""
        logger.info("%s: %d boxes in %d key frames", self.split, sum(counts), len(counts))

    @classmethod
    def _read_sources(cls, recipe: Recipe, split: str, videos: Sequence[Any]) -> Sequence[Any]:
        return read_sources(recipe, split)

    def _scanned(self, number: int) -> ScannedVideo:
        return super()._scanned(self.videos[number].video)

    def _aim(self, number: int, video: Video, draw: Draw) -> tuple[ClipPlan, dict[str, Any]]:
        key_frame = self.videos[number]
        centre = frame_of(key_frame.second, video)
        classes = classes_of(key_frame, self._classes)
        for resampled in range(_MAX_REDRAWS + 1):
            plan = draw(centre)
            if resampled == _MAX_REDRAWS:
                plan = replace(plan, corner=_corner_over(key_frame.boxes[0], plan))
            boxes, parts = boxes_in_clip(np.asarray(key_frame.boxes), plan)
            seen = (parts.max(1) >= _MIN_VISIBLE) | (self.split != "train")
            seen[0] |= resampled == _MAX_REDRAWS
            if seen.any():
                break
        label = pack(parts[seen, 0], boxes[seen], classes[seen], self._most)
        return plan, {"label": label, "resampled": resampled}


def classes_of(key_frame: KeyFrame, num_classes: int) -> Floats:
    """Return the multi-hot labels of the boxes of a key frame, (k, num_classes)."""
    labels: Floats = np.zeros((len(key_frame.boxes), num_classes), np.float32)
    for row, classes in zip(labels, key_frame.labels, strict=True):
        row[list(classes)] = 1
    return labels


def boxes_in_clip(boxes: Floats, plan: ClipPlan) -> tuple[Floats, Floats]:
    """Transform boxes from frame to clip coordinates, and cut off what is outside the clip.

    Args:
        boxes: (k, 4), corners (x1, y1, x2, y2) relative to the sides of the frame, in [0, 1].
        plan: The plan of the clip, with resize, crop and flip.

    Returns:
        A tuple of two arrays. The first, (k, 4), has the corners of the visible parts of the boxes
        in pixels of the clip. The second, (k, 2), has the area of each visible part as a fraction
        of the whole box and as a fraction of the clip.
    """
    whole = boxes * np.tile(plan.size, 2) - np.tile(plan.corner, 2)
    inside = whole.clip(0, plan.crop)
    area = _area(inside)
    parts = np.stack([area / _area(whole), area / plan.crop**2], 1).astype(np.float32)
    if plan.flip:
        inside[:, [0, 2]] = plan.crop - inside[:, [2, 0]]
    return inside.astype(np.float32), parts


def frame_of(second: int, video: Video) -> float:
    """Return the frame position in a video that corresponds to an AVA timestamp in seconds.

    Raises:
        UnreadableVideoError: The video ends before this time.
    """
    frame = (second - FIRST_SECOND) * video.fps
    if not 0 <= frame < video.frames:
        raise UnreadableVideoError(
            f"has {video.frames} frames at {video.fps:g} frames per second and ends before its key "
            f"frame at second {second} (the first frame is at second {FIRST_SECOND})"
        )
    return frame


def _area(boxes: Floats) -> Floats:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def _corner_over(box: tuple[float, ...], plan: ClipPlan) -> tuple[int, int]:
    """Return the top left corner (x, y) in pixels of a crop that is centred on the box.

    The crop is moved where it would extend beyond the resized frame.
    """
    centre = np.add(box[:2], box[2:]) / 2 * plan.size
    x, y = np.rint(centre - plan.crop / 2).clip(0, np.subtract(plan.size, plan.crop))
    return int(x), int(y)
