"""Read the lists of AVA in the formats that PySlowFast uses.

    Folder               File                     Content
    AVA.FRAME_LIST_DIR   train.csv, val.csv       a frame list, or a line "path 0" per video file
    AVA.ANNOTATION_DIR   ava_train_v2.2.csv       video,second,x1,y1,x2,y2,label (a line per label)
                         predicted boxes          video,second,x1,y1,x2,y2,,score (empty label)
                         ava_action_list...pbtxt  names of the labels, which count from 1

Box coordinates are relative to the sides of the frame, in [0, 1].
"""

from __future__ import annotations

import csv
import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.csv_list import LabelledVideo, check_list, read_csv
from slowfast_patches.datasets.lists.frame_list import FrameVideo, is_frame_list, read_frame_list
from slowfast_patches.datasets.reading.formats import video_name
from slowfast_patches.datasets.reading.scanned_video import SharedList
from slowfast_patches.extras.detection.keys import AvaKeys
from slowfast_patches.utils.errors import UserError, mistake_in
from slowfast_patches.utils.storage import as_path, is_remote
from slowfast_patches.utils.tables import shorten_list

logger = logging.getLogger(__name__)

FIRST_SECOND = 900
"""AVA timestamp in seconds of the first frame of a video. AVA's video files start at this time."""
SECONDS = range(902, 1799)
"""AVA timestamps, in seconds, that a key frame can have."""
MAX_BOXES = 1000
"""Maximum number of boxes in a key frame, which bounds the memory. AVA has at most about 60."""
_FPS = 30.0
"""Frame rate of AVA's extracted frames."""

Box = tuple[float, float, float, float]
"""Corners (x1, y1, x2, y2) relative to the sides of the frame."""


class KeyFrame(NamedTuple):
    """Key frame of a video, with bounding boxes and the classes of each box.

    Attributes:
        path: The video file, or the folder that contains the first frame of the video.
        video: Index of the video in the result of `read_sources`.
        name: Name of the video in AVA's lists.
        second: AVA timestamp in seconds.
        boxes: Corners (x1, y1, x2, y2) of each box relative to the sides of the frame.
        labels: Class indices of each box, from 0.
    """

    path: str
    video: int
    name: str
    second: int
    boxes: tuple[Box, ...]
    labels: tuple[tuple[int, ...], ...]

    @property
    def annotation(self) -> str:
        """Time in seconds, boxes and labels as one string, which `list_digest` hashes."""
        return f"{self.second} {self.boxes} {self.labels}"


def ava_path(recipe: Recipe, split: str) -> Path:
    """Return the path of the first video list of a split."""
    return _video_lists(recipe, split)[0]


def read_ava(recipe: Recipe, path: Path, split: str) -> SharedList[KeyFrame]:
    """Read the key frames of a split that have boxes, in the order of videos and seconds.

    Raises:
        ValueError: A file is missing or has an invalid line, a box belongs to a video that is not
            listed, or no key frame has a box.
    """
    sources = read_sources(recipe, split)
    names = [*map(_name, sources)]
    boxes = _boxes(recipe, split)
    if unknown := sorted({name for name, _ in boxes}.difference(names)):
        raise UserError(
            f"{len(unknown)} videos have boxes but are missing from {path}: "
            f"{shorten_list(unknown)}. Add these videos to the list, or remove their boxes"
        )
    key_frames = SharedList(
        KeyFrame(source.path, number, name, second, tuple(found), tuple(map(tuple, found.values())))
        for number, (name, source) in enumerate(zip(names, sources, strict=True))
        for second in SECONDS
        if (found := boxes.get((name, second)))
    )
    if not key_frames:
        raise UserError(f"no key frame of {split} has a box. Check the files of boxes (keys AVA.*)")
    return key_frames


def read_sources(recipe: Recipe, split: str) -> Sequence[FrameVideo | LabelledVideo]:
    """Read the videos of a split. A video that is listed several times is used once.

    Raises:
        ValueError: A list is missing or has an invalid line, two videos have the same name, or some
            of the lists are frame lists and others are lists of video files.
    """
    prefix = AvaKeys.of(recipe).frame_dir
    videos = list[FrameVideo | LabelledVideo]()
    for path in _video_lists(recipe, split):
        check_list(path)
        if is_frame_list(path):
            classes = recipe.model.num_classes
            videos += read_frame_list(path, prefix=prefix, num_classes=classes, fps=_FPS)
        else:
            videos += read_csv(path, prefix=prefix, separator=recipe.data.path_label_separator)
    if len(set(map(type, videos))) > 1:
        raise UserError(
            f"the lists of {split} (AVA.TRAIN_LISTS, AVA.TEST_LISTS) must either all be frame "
            "lists, or all be lists of video files"
        )
    return _once(videos, ava_path(recipe, split))


def _name(video: FrameVideo | LabelledVideo) -> str:
    """Return the name by which boxes refer to a video."""
    return video.name if isinstance(video, FrameVideo) else video_name(video.path)


def _once(
    videos: Sequence[FrameVideo | LabelledVideo], path: Path
) -> list[FrameVideo | LabelledVideo]:
    """Remove repeated videos, and warn about them.

    Raises:
        ValueError: Two different videos have the same name, so that their boxes cannot be told
            apart.
    """
    found = dict[str, FrameVideo | LabelledVideo]()
    again = dict[str, None]()
    for video in videos:
        name = _name(video)
        known = found.setdefault(name, video)
        if known is not video:
            if _files(known) != _files(video):
                raise UserError(
                    f"{path}: two videos are named {name}: {known.path} and {video.path}. Boxes "
                    "refer to videos by their names. Rename one of the videos, also in the files "
                    "of boxes"
                )
            again[name] = None
    if again:
        _warn(
            f"{path}: {len(again)} videos are listed more than once and used once: "
            f"{shorten_list([*again])}"
        )
    return list(found.values())


def _files(video: FrameVideo | LabelledVideo) -> Sequence[str]:
    """Return the paths of a video without symbolic links."""
    files = video.files if isinstance(video, FrameVideo) else (video.path,)
    return [file if is_remote(file) else os.path.realpath(file) for file in files]


@cache
def _warn(text: str) -> None:
    """Log a warning. Repeated calls with the same text log it only once."""
    logger.warning("%s", text)


def annotation(recipe: Recipe, name: str) -> Path:
    """Return the path of a file in AVA.ANNOTATION_DIR."""
    return as_path(AvaKeys.of(recipe).annotation_dir or recipe.data.path_to_data_dir) / name


def evaluation_files(recipe: Recipe, split: str) -> list[Path]:
    """Return the files that the evaluation of a split reads beside the lists."""
    ava = AvaKeys.of(recipe)
    names = (ava.label_map_file, ava.exclusion_file, ava.groundtruth_file)
    return [annotation(recipe, name) for name in names if split != "train"]


def host_ava() -> Any:
    """Import PySlowFast's functions that read AVA's annotations and evaluate boxes."""
    _restore_numpy_names()
    from slowfast.utils import ava_eval_helper

    return ava_eval_helper


def ava_classes(recipe: Recipe) -> tuple[str, ...] | None:
    """Read the class names from AVA.LABEL_MAP_FILE.

    Returns:
        The names in the order of the class indices, or None if the file does not exist. Classes
        that the file omits get their id as name. If several classes have the same name, their ids
        are appended to it.

    Raises:
        ValueError: An id is not from 1 to MODEL.NUM_CLASSES or occurs twice, or the file names no
            class.
    """
    path = annotation(recipe, AvaKeys.of(recipe).label_map_file)
    if not path.is_file():
        return None
    with mistake_in(f"the label map {path} cannot be read", Exception):
        categories, _ = host_ava().read_labelmap(str(path))
    names = {row["id"]: row["name"] for row in categories}
    if len(names) < len(categories):
        raise UserError(f"{path} has an id more than once. Each class must have its own id")
    count = recipe.model.num_classes
    if not names or min(names) < 1 or max(names) > count:
        raise UserError(
            f"{path} must name classes with ids from 1 to MODEL.NUM_CLASSES {count}. Correct the "
            "file, or set AVA.LABEL_MAP_FILE to another file"
        )
    shared = Counter(names.values())
    names = {n: f"{name} ({n})" if shared[name] > 1 else name for n, name in names.items()}
    return tuple(names.get(number, str(number)) for number in range(1, max(names) + 1))


def read_boxes(
    path: Path,
    num_classes: int,
    least_score: float | None = None,
    *,
    has_labels: bool = True,
) -> Iterator[tuple[str, int, Box, list[int]]]:
    """Read boxes from a csv file, and clip them to the frame.

    Args:
        path: The csv file.
        num_classes: Maximum label. Labels in the file count from 1.
        least_score: If given, every line must have a score, and boxes with a lower score are left
            out. Boxes without an area are always left out.
        has_labels: Whether to warn about boxes without a label, if they have no score.

    Yields:
        The video name, the second, the box and the class indices of each line.

    Raises:
        ValueError: A line is invalid.
    """
    empty = 0
    unlabelled = list[int]()
    with mistake_in(f"{path} cannot be read"):
        opened = path.open(encoding="utf-8-sig", newline="")
    with opened as file:
        rows = csv.reader(file)
        try:
            for row in rows:
                second, box, labels = _parse_box(row, num_classes)
                if least_score is not None and float(row[7]) < least_score:
                    continue
                if box[0] < box[2] and box[1] < box[3]:
                    if least_score is None and not labels:
                        unlabelled.append(rows.line_num)
                    yield row[0], second, box, labels
                else:
                    empty += 1
        except (ValueError, IndexError, csv.Error) as error:
            raise UserError(
                f"{path}, line {rows.line_num}: {error}. A line is video, second ({SECONDS[0]} to "
                f"{SECONDS[-1]}), x1, y1, x2, y2 (fractions of the sides of the frame), label (1 "
                f"to MODEL.NUM_CLASSES {num_classes}, or empty), and for predicted boxes a score"
            ) from error
    if empty:
        logger.warning("%s: %d boxes have no area in the frame and are left out", path, empty)
    if unlabelled and has_labels:
        _warn(
            f"{path}: {len(unlabelled)} boxes have no label and count as examples of no class. The "
            f"first is in line {unlabelled[0]}"
        )


def _parse_box(row: Sequence[str], num_classes: int) -> tuple[int, Box, list[int]]:
    """Return the second, the box and the class indices of a line."""
    second = int(row[1])
    sides = [float(side) for side in row[2:6]]
    labels = [] if row[6].strip() in ("", "-1") else [int(row[6]) - 1]
    if (
        second not in SECONDS
        or not all(-1 <= side <= 2 for side in sides)
        or not all(0 <= label < num_classes for label in labels)
    ):
        raise UserError("a value is out of range")
    left, top, right, bottom = (min(max(side, 0.0), 1.0) for side in sides)
    return second, (left, top, right, bottom), labels


def _boxes(recipe: Recipe, split: str) -> dict[tuple[str, int], dict[Box, list[int]]]:
    """Read the boxes of a split from all its files, and merge the labels of identical boxes.

    Returns:
        A dict from key frame (video name, second) to a dict from box to class indices.
    """
    ava = AvaKeys.of(recipe)
    annotated = ava.train_gt_box_lists if split == "train" else ()
    predicted = ava.train_predict_box_lists if split == "train" else ava.test_predict_box_lists
    if split != "train" and not predicted:
        annotated = (ava.groundtruth_file,)
    files: list[tuple[str, float | None]] = [(name, None) for name in annotated]
    files += [(name, ava.detection_score_thresh) for name in predicted]
    every_fourth = split == "val" and not ava.full_test_on_val
    boxes = dict[tuple[str, int], dict[Box, list[int]]]()
    for file, least in files:
        found = read_boxes(annotation(recipe, file), recipe.model.num_classes, least)
        for name, second, box, labels in found:
            if not every_fourth or second % 4 == 0:
                of_frame = boxes.setdefault((name, second), {})
                of_frame.setdefault(box, []).extend(labels)
                check_boxes(len(of_frame), f"{name}, second {second}")
    return boxes


def check_boxes(count: int, where: str) -> None:
    """Check the number of boxes in a key frame.

    Raises:
        ValueError: The key frame has too many boxes.
    """
    if count > MAX_BOXES:
        raise UserError(
            f"the key frame of {where} has more than {MAX_BOXES} boxes. For predicted boxes, raise "
            "AVA.DETECTION_SCORE_THRESH"
        )


def _video_lists(recipe: Recipe, split: str) -> list[Path]:
    names = AvaKeys.of(recipe).train_lists if split == "train" else AvaKeys.of(recipe).test_lists
    if not names:
        raise UserError(
            f"AVA.{'TRAIN' if split == 'train' else 'TEST'}_LISTS is empty, but must name a list"
        )
    folder = as_path(AvaKeys.of(recipe).frame_list_dir or recipe.data.path_to_data_dir)
    return [folder / name for name in names]


def _restore_numpy_names() -> None:
    """Define np.float and np.bool in `slowfast.utils.ava_evaluation`. NumPy 1.24 removed them.

    The names are added to the `np` of that module. NumPy itself is not changed.
    """
    from slowfast.utils.ava_evaluation import metrics

    metrics.np = SimpleNamespace(**{**vars(np), "float": float, "bool": bool})
