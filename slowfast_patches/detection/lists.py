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
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.csv_list import (
    LabelledVideo,
    check_list,
    read_csv,
    read_utf8,
)
from slowfast_patches.datasets.lists.frame_list import FrameVideo, is_frame_list, read_frame_list
from slowfast_patches.datasets.reading.shared_list import SharedList
from slowfast_patches.datasets.reading.video_file import video_name
from slowfast_patches.utils.storage import as_path
from slowfast_patches.utils.tables import shorten_list

logger = logging.getLogger(__name__)

FIRST_SECOND = 900
"""AVA timestamp in seconds of the first frame of a video. AVA's video files start at this time."""
SECONDS = range(902, 1799)
"""AVA timestamps, in seconds, that a key frame can have."""
_MAX_BOXES = 1000
"""Maximum number of boxes in a key frame, which bounds the memory. AVA has at most about 60."""
_FPS = 30.0
"""Frame rate of AVA's extracted frames."""

Box = tuple[float, float, float, float]
Boxes = dict[tuple[str, int], dict[Box, list[int]]]
"""Maps each key frame (video name, second) to a dict from box (x1, y1, x2, y2) to labels."""


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
    names = [v.name if isinstance(v, FrameVideo) else video_name(v.path) for v in sources]
    boxes = _boxes(recipe, split)
    if unknown := sorted({name for name, _ in boxes}.difference(names)):
        raise ValueError(
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
        raise ValueError(f"no key frame of {split} has a box. Check the files of boxes, keys AVA.*")
    return key_frames


def read_sources(recipe: Recipe, split: str) -> Sequence[FrameVideo | LabelledVideo]:
    """Read the videos of a split.

    Raises:
        ValueError: A list is missing or has an invalid line, or the split has both frame lists and
            lists of video files.
    """
    prefix = recipe.ava.frame_dir
    videos = list[FrameVideo | LabelledVideo]()
    for path in _video_lists(recipe, split):
        check_list(path)
        if is_frame_list(path):
            classes = recipe.model.num_classes
            videos += read_frame_list(path, prefix=prefix, num_classes=classes, fps=_FPS)
        else:
            videos += read_csv(path, prefix=prefix, separator=recipe.data.path_label_separator)
    if len(set(map(type, videos))) > 1:
        raise ValueError(
            "the lists of an AVA split must all be frame lists, or all be lists of video files"
        )
    return videos


def annotation(recipe: Recipe, name: str) -> Path:
    """Return the path of a file in AVA.ANNOTATION_DIR."""
    return as_path(recipe.ava.annotation_dir or recipe.data.path_to_data_dir) / name


def ava_classes(recipe: Recipe) -> tuple[str, ...] | None:
    """Read the class names from AVA.LABEL_MAP_FILE.

    Returns:
        The names in the order of the class indices, or None if the file does not exist. Classes
        that the file omits get their id as name.

    Raises:
        ValueError: An id is not from 1 to MODEL.NUM_CLASSES, or the file names no class.
    """
    path = annotation(recipe, recipe.ava.label_map_file)
    if not path.is_file():
        return None
    names = dict[int, str]()
    name = ""
    count = recipe.model.num_classes
    for number, line in enumerate(read_utf8(path).splitlines(), start=1):
        if found := re.fullmatch(r'\s*name:\s*"(.*)"\s*', line):
            name = found[1]
        elif found := re.fullmatch(r"\s*(label_)?id:\s*(\S+)\s*", line):
            if not re.fullmatch(r"\d{1,9}", found[2]) or not 1 <= int(found[2]) <= count:
                raise ValueError(
                    f"{path}, line {number}: the id {found[2]:.20} is not from 1 to "
                    f"MODEL.NUM_CLASSES {count}"
                )
            names[int(found[2])] = name
    if not names:
        raise ValueError(
            f"{path} names no class. Correct the file, or set AVA.LABEL_MAP_FILE to another file"
        )
    return tuple(names.get(number, str(number)) for number in range(1, max(names) + 1))


def read_boxes(path: Path, num_classes: int, least_score: float | None = None) -> Boxes:
    """Read boxes from a csv file, and clip them to the frame.

    Args:
        path: The csv file.
        num_classes: Maximum label. Labels in the file count from 1.
        least_score: If given, every line must have a score, and boxes with a lower score are left
            out. Boxes without an area are always left out.

    Raises:
        ValueError: The file cannot be read, or has an invalid line.
    """
    boxes: Boxes = {}
    row = list[str]()
    empty = list[int]()
    without_label = list[int]()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file)
            for row in rows:
                left, top, right, bottom = map(_side, row[2:6])
                if (second := int(row[1])) not in SECONDS:
                    raise ValueError(f"second {second} is not in {SECONDS[0]} to {SECONDS[-1]}")
                labels = [int(row[6]) - 1] if row[6].strip() not in ("", "-1") else []
                if labels and not 0 <= labels[0] < num_classes:
                    known = f"1 to MODEL.NUM_CLASSES {num_classes}"
                    raise ValueError(f"label {row[6].strip():.20} is not one of {known}")
                if least_score is not None and float(row[7]) < least_score:
                    continue
                if left >= right or top >= bottom:
                    empty.append(rows.line_num)
                    continue
                if least_score is None and not labels:
                    without_label.append(rows.line_num)
                of_frame = boxes.setdefault((row[0], second), {})
                of_frame.setdefault((left, top, right, bottom), []).extend(labels)
                if len(of_frame) > _MAX_BOXES:
                    raise ValueError(f"the key frame has more than {_MAX_BOXES} boxes")
    except OSError as error:
        raise ValueError(
            f"the file of boxes {path} cannot be read: {error}. Check the keys AVA.*"
        ) from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{path}, line {rows.line_num}: {error}") from error
    except (ValueError, IndexError) as error:
        form = "video, second, x1, y1, x2, y2, label" + ", score" * (least_score is not None)
        line = f"{path}, line {rows.line_num}: {','.join(row)!r:.100}"
        raise ValueError(f"{line} is not {form}: {error}") from None
    _warn(path, "have no area in the frame and are left out", tuple(empty))
    _warn(path, "have no label and are used without a positive class", tuple(without_label))
    return boxes


def _side(text: str) -> float:
    """Parse a box coordinate, and clip it to the frame."""
    if not -1 <= (side := float(text)) <= 2:
        raise ValueError(
            f"{side:g} is not a coordinate from 0 to 1 (relative to the side of the frame)"
        )
    return min(max(side, 0.0), 1.0)


@cache
def _warn(path: Path, what: str, lines: tuple[int, ...]) -> None:
    """Log a warning about unusual lines. Repeated calls with the same arguments log it only once.

    Args:
        path: The file of boxes.
        what: Predicate of the sentence "5 boxes ...".
        lines: The line numbers of the boxes.
    """
    if lines:
        logger.warning("%s: %d boxes %s. The first is in line %d", path, len(lines), what, lines[0])


def _boxes(recipe: Recipe, split: str) -> Boxes:
    """Read the boxes of a split from all its files, and merge the labels of identical boxes."""
    ava = recipe.ava
    annotated = ava.train_gt_box_lists if split == "train" else ()
    predicted = ava.train_predict_box_lists if split == "train" else ava.test_predict_box_lists
    if split != "train" and not predicted:
        annotated = (ava.groundtruth_file,)
    files: list[tuple[str, float | None]] = [(name, None) for name in annotated]
    files += [(name, ava.detection_score_thresh) for name in predicted]
    boxes: Boxes = {}
    for name, least in files:
        found = read_boxes(annotation(recipe, name), recipe.model.num_classes, least)
        for key, of_frame in found.items():
            if split != "val" or ava.full_test_on_val or key[1] % 4 == 0:
                for box, labels in of_frame.items():
                    boxes.setdefault(key, {}).setdefault(box, []).extend(labels)
    return boxes


def _video_lists(recipe: Recipe, split: str) -> list[Path]:
    names = recipe.ava.train_lists if split == "train" else recipe.ava.test_lists
    if not names:
        raise ValueError(
            f"AVA.{'TRAIN' if split == 'train' else 'TEST'}_LISTS is empty, but must name a list"
        )
    folder = as_path(recipe.ava.frame_list_dir or recipe.data.path_to_data_dir)
    return [folder / name for name in names]
