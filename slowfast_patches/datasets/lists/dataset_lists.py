"""Data sets by their names in a recipe: where their lists are, and what their labels are.

Each has one entry in DATASETS. A data set of csv files like Kinetics' is an entry of one line:

    DATASETS["sports"] = DataSet(mirrors=False, segments=True)
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.class_names import in_order, named_classes
from slowfast_patches.datasets.lists.csv_list import (
    CsvList,
    LabelledVideo,
    csv_path,
    read_csv,
    read_utf8,
)
from slowfast_patches.datasets.lists.frame_list import FrameList, read_frame_list
from slowfast_patches.datasets.lists.ssv2_list import read_ssv2, ssv2_classes, ssv2_path
from slowfast_patches.utils.tables import first_few

__all__ = [
    "DATASETS",
    "DataSet",
    "class_names",
    "count_list",
    "dataset_of",
    "list_digest",
    "list_path",
    "list_warnings",
    "read_list",
    "repeated_videos",
]


def read_list(recipe: Recipe, split: str) -> Sequence[Any]:
    """The videos of a split, each with its `path`, of TRAIN.DATASET or TEST.DATASET.

    Raises:
        ValueError: no such data set; the recipe does not fit its labels; no list, or an invalid
            one, with file and line.
    """
    name = dataset_name(recipe, split)
    dataset = dataset_of(recipe, split)
    if dataset.multi_label != recipe.data.multi_label:
        count = "several labels" if dataset.multi_label else "one label"
        raise ValueError(
            f"set DATA.MULTI_LABEL {dataset.multi_label} for {name}, which has {count} a video"
        )
    if split == "train" and recipe.data.random_flip and not dataset.mirrors:
        raise ValueError(
            f"set DATA.RANDOM_FLIP False for {name}, where left and right have meaning"
        )
    return dataset.read(recipe, split)


def list_path(recipe: Recipe, split: str) -> Path:
    """The file that lists a split. It need not be there."""
    return dataset_of(recipe, split).path(recipe, split)


def dataset_name(recipe: Recipe, split: str) -> str:
    """The data set of a split, in lower case: TRAIN.DATASET, or TEST.DATASET for the test."""
    name = recipe.test.dataset if split == "test" else recipe.train.dataset
    return name.lower()


def dataset_of(recipe: Recipe, split: str) -> DataSet:
    """The entry of a split's data set; ValueError if there is no such data set."""
    name = dataset_name(recipe, split)
    if name not in DATASETS:
        key = "TEST.DATASET" if split == "test" else "TRAIN.DATASET"
        raise ValueError(f"{key} {name!r} is no data set; there are {', '.join(DATASETS)}")
    return DATASETS[name]


def count_list(recipe: Recipe, split: str) -> int | None:
    """Videos in the list of a split; None where there is no list. Raises as `read_list`."""
    return len(read_list(recipe, split)) if list_path(recipe, split).is_file() else None


def list_digest(recipe: Recipe, videos: Sequence[Any]) -> str:
    """SHA-256 of the training list: the videos' paths and labels, in order.

    Paths are as the list has them, before DATA.PATH_PREFIX: the data may move. Of a frame list it
    is the videos' names, and the labels of their frames.
    """
    digest = hashlib.sha256()
    if isinstance(videos, FrameList):
        names = videos.names
        runs = videos.runs
        for numbers in (names.values, names.ends, runs.values, runs.ends):
            digest.update(numbers.astype("<i8").tobytes())
        return digest.hexdigest()
    path = list_path(recipe, "train")
    root = os.path.join(str(Path(recipe.data.path_prefix or path.parent)), "")
    for video in videos:
        where = str(getattr(video, "path", video))  # a data set of another's may have numbers
        # Named by a json file, videos may lie in a folder of their own.
        name = Path(where).name if path.suffix == ".json" else where.removeprefix(root)
        digest.update(f"{name}\0{getattr(video, 'label', None)}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def class_names(recipe: Recipe) -> tuple[str, ...] | None:
    """Names by class number, where the data set that is trained on has them beside its lists.

    Raises:
        ValueError: a file of names that is wrong, or does not have MODEL.NUM_CLASSES of them.
    """
    names = dataset_of(recipe, "train").classes(recipe)
    if names is not None and (count := len(names)) != recipe.model.num_classes:
        raise ValueError(
            f"MODEL.NUM_CLASSES is {recipe.model.num_classes}, and {recipe.data.path_to_data_dir} "
            f"names {count} classes; set MODEL.NUM_CLASSES {count}"
        )
    return names


# What is odd about a list.


def list_warnings(recipe: Recipe, split: str, videos: Sequence[Any]) -> list[str]:
    """Warnings of what is odd about the list of a split; none of a test list that is val's, which
    has them already. What frame lists repeat is refused as they are parsed."""
    path = list_path(recipe, split)
    texts = list[str]()
    as_val = split == "test" and recipe.train.enable and path == list_path(recipe, "val")
    if path.suffix == ".csv" and isinstance(videos[0], LabelledVideo) and not as_val:
        texts += repeated_videos(path, videos)
    if split == "train":
        texts += _untrained_classes(recipe, path, videos)
    return texts


def repeated_videos(csv: Path, videos: Sequence[LabelledVideo]) -> list[str]:
    """A warning of the videos that a csv file names twice or more; none is the rule."""
    counts = Counter(video.path for video in videos)
    again = [f"{path} ({count} times)" for path, count in counts.items() if count > 1]
    if not again:
        return []
    return [
        f"{csv}: {len(again)} video(s) are listed more than once, and an epoch has them as often: "
        f"{first_few(again)}"
    ]


def _untrained_classes(recipe: Recipe, path: Path, videos: Sequence[Any]) -> list[str]:
    """A warning of the classes of MODEL.NUM_CLASSES that no training video has; where they have no
    names, there may be fewer."""
    labels = (
        videos.labels
        if isinstance(videos, FrameList)
        else {video.label for video in videos if isinstance(video, LabelledVideo)}
    )
    count = recipe.model.num_classes
    missing = sorted(set(range(count)) - labels)
    if not missing or not labels:
        return []
    try:
        names = class_names(recipe)
    except ValueError:
        names = None  # names that do not fit are refused where they are needed
    named = missing if names is None else [f"{number} ({names[number]})" for number in missing]
    text = f"{path}: {len(missing)} of MODEL.NUM_CLASSES {count} classes have no video to be "
    text += f"trained on: {first_few(named)}"
    if names is None and (last := max(labels)) < count - 1:
        text += f"; the labels end at {last}: if that is all, set MODEL.NUM_CLASSES {last + 1}"
    return [text]


# The lists of each data set.


def _read_kinetics(recipe: Recipe, split: str) -> CsvList:
    return read_csv(
        csv_path(recipe, split),
        prefix=recipe.data.path_prefix,
        separator=recipe.data.path_label_separator,
        num_classes=recipe.model.num_classes,
    )


def _kinetics_classes(recipe: Recipe) -> tuple[str, ...] | None:
    return named_classes(Path(recipe.data.path_to_data_dir))


def _ssv2_classes(recipe: Recipe) -> tuple[str, ...] | None:
    """A prepared data set has its names as Kinetics does."""
    return ssv2_classes(Path(recipe.data.path_to_data_dir)) or _kinetics_classes(recipe)


def _charades_path(recipe: Recipe, split: str) -> Path:
    """The csv of the split; for the test split val.csv where there is none."""
    path = csv_path(recipe, split)
    return csv_path(recipe, "val") if split == "test" and not path.is_file() else path


def _read_charades(recipe: Recipe, split: str) -> FrameList:
    return read_frame_list(
        _charades_path(recipe, split),
        prefix=recipe.data.path_prefix,
        num_classes=recipe.model.num_classes,
        fps=float(recipe.data.target_fps),
    )


def _charades_classes(recipe: Recipe) -> tuple[str, ...] | None:
    """From Charades_v1_classes.txt, which has "c000 Holding some clothes" a line."""
    path = Path(recipe.data.path_to_data_dir) / "Charades_v1_classes.txt"
    classes = list[tuple[str, object]]()
    if not path.is_file():
        return None
    for line, text in enumerate(read_utf8(path).splitlines(), start=1):
        match = re.fullmatch(r"c(\d+)\s+(\S.*)", text.strip())
        if match:
            classes.append((match[2], int(match[1])))
        elif text.strip():
            raise ValueError(f"{path}, line {line}: {text!r:.100} is not 'c000 name'")
    return in_order(path, classes)


@dataclass(frozen=True)
class DataSet:
    """What is particular to a data set; by default as Kinetics."""

    path: Callable[[Recipe, str], Path] = csv_path
    """The file that lists a split."""
    read: Callable[[Recipe, str], Sequence[Any]] = _read_kinetics
    """The videos of a split."""
    classes: Callable[[Recipe], tuple[str, ...] | None] = _kinetics_classes
    """Names by class number; None where there are no names."""
    multi_label: bool = False
    """Whether a video has several labels."""
    mirrors: bool = True
    """Whether a mirrored clip has the label of the clip."""
    segments: bool = False
    """Whether, where DATA.CLIP_SAMPLING is auto, a clip has one frame from each equal part of its
    video, not frames at a stride."""
    counts_frames: bool = False
    """Whether strides count a video's own frames, whatever their rate."""
    views_to_end: bool = False
    """Whether the last of several test views ends with the video; PySlowFast's end before it."""
    build: Callable[[Recipe, str], Any] | None = None
    """Makes the torch data set of a split; None for `ClipDataset`."""


DATASETS: dict[str, DataSet] = {
    "kinetics": DataSet(),
    "ssv2": DataSet(
        path=ssv2_path, read=read_ssv2, classes=_ssv2_classes, mirrors=False, segments=True
    ),
    "charades": DataSet(
        path=_charades_path,
        read=_read_charades,
        classes=_charades_classes,
        multi_label=True,
        counts_frames=True,
        views_to_end=True,
    ),
}
"""By their names in a recipe, in lower case."""
