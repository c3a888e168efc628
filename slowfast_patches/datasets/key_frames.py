"""Data set of clips around key frames with bounding boxes.

The boxes get the same resize, crop and flip as the frames.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from multigrid import ClipPlan, Shape, Video
from multigrid.sampler import stack_boxes
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.clips import ClipDataset
from slowfast_patches.datasets.items import Label, VideoBatch
from slowfast_patches.datasets.lists.ava_list import FIRST_SECOND, read_sources
from slowfast_patches.datasets.reading.scanned_video import ScannedVideo
from slowfast_patches.datasets.reading.unreadable import UnreadableVideoError

logger = logging.getLogger(__name__)

_MAX_REDRAWS = 10
"""Maximum number of times that a clip without a visible box is drawn again. The last of these crops
is centred on the first box."""
_MIN_VISIBLE = 0.25
"""A box is used in training if the clip shows at least this fraction of the box, or if the visible
part covers at least this fraction of the clip."""

Floats = NDArray[np.floating[Any]]


class KeyFrameClips(ClipDataset):
    """Data set of clips around key frames with bounding boxes, for action detection.

    The attribute `videos` is the list of `KeyFrame`s. In addition to the fields of `Clips`, an item
    has these fields for the k boxes of its clip:

    - `boxes` (k, 4): Corners (x1, y1, x2, y2) in pixels of the clip, after resize, crop and flip.
    - `label` (k, classes): Multi-hot labels.
    - `rows` (k,): Index of each box among all boxes of the split.
    - `shares` (k,): Fraction of each box that the clip shows.

    A training clip has only the visible boxes: the clip shows at least a quarter of the box, or the
    box covers at least a quarter of the clip. A training clip without such a box is drawn again,
    and the field `redrawn` counts how often. An evaluation clip has all boxes of the key frame.
    """

    def __init__(self, recipe: Recipe, split: str) -> None:
        super().__init__(recipe, split)
        counts = [len(key_frame.boxes) for key_frame in self.videos]
        self.first_rows: NDArray[np.int64] = np.cumsum([0, *counts])
        """Index of the first box of each key frame, followed by the total number of boxes."""
        logger.info("%s: %d boxes in %d key frames", split, sum(counts), len(counts))

    def _read_sources(self, recipe: Recipe, videos: Sequence[Any]) -> Sequence[Any]:
        return read_sources(recipe, self.split)

    def _scanned(self, number: int) -> ScannedVideo:
        return super()._scanned(self.videos[number].video)

    def _label(self, video: Any, plan: ClipPlan | None) -> Label:
        labels: Floats = np.zeros((len(video.boxes), self._classes), np.float32)
        for row, classes in zip(labels, video.labels, strict=True):
            row[list(classes)] = 1
        return labels

    def _draw(
        self, rng: np.random.Generator, shape: Shape, number: int, video: Video
    ) -> tuple[ClipPlan, dict[str, Any]]:
        key_frame = self.videos[number]
        centre = frame_of(key_frame.second, video)
        for redrawn in range(_MAX_REDRAWS + 1):
            plan = self.sampling.training_plan(rng, shape, video, centre)
            if redrawn == _MAX_REDRAWS:
                plan = replace(plan, corner=_corner_over(key_frame.boxes[0], plan))
            targets = self._targets(number, plan)
            seen = targets.pop("is_seen")
            seen[0] |= redrawn == _MAX_REDRAWS
            if seen.any():
                break
        targets = {name: values[seen] for name, values in targets.items()}
        return plan, targets | {"redrawn": redrawn}

    def _look(self, number: int, video: Video, part: int) -> tuple[ClipPlan, dict[str, Any]]:
        centre = frame_of(self.videos[number].second, video)
        plan = self.sampling.evaluation_plan(video, part, self._views, self._crop, centre)
        targets = self._targets(number, plan)
        del targets["is_seen"]
        return plan, targets

    def _add_targets(self, batch: VideoBatch, items: Sequence[dict[str, Any]]) -> None:
        batch["boxes"] = stack_boxes(items)
        batch["rows"] = torch.as_tensor(np.concatenate([item["rows"] for item in items]))
        batch["shares"] = torch.as_tensor(np.concatenate([item["shares"] for item in items]))
        batch["redrawn"] = sum(item.get("redrawn", 0) for item in items)

    def _targets(self, number: int, plan: ClipPlan) -> dict[str, Any]:
        """Return the fields of an item that describe the boxes of a key frame.

        `is_seen` (k,) marks the boxes that are visible enough for training.
        """
        key_frame = self.videos[number]
        boxes, parts = boxes_in_clip(np.asarray(key_frame.boxes), plan)
        return {
            "label": self._label(key_frame, plan),
            "boxes": boxes,
            "rows": np.arange(self.first_rows[number], self.first_rows[number + 1]),
            "shares": parts[:, 0],
            "is_seen": parts.max(1) >= _MIN_VISIBLE,
        }


def boxes_in_clip(boxes: Floats, plan: ClipPlan) -> tuple[Floats, Floats]:
    """Transform boxes from frame coordinates to pixels of a clip, and clip them to its borders.

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
    middle = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
    x, y = (
        min(max(round(at * side - plan.crop / 2), 0), side - plan.crop)
        for at, side in zip(middle, plan.size, strict=True)
    )
    return x, y
