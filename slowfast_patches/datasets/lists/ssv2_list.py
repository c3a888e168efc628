"""Read the lists of Something-Something V2 in the forms that users have.

    train.csv with the header of frame lists     JPEG frames; classes from the json files
    train.csv without it: "path label"           video files, as multigrid-prepare writes them
    no train.csv                                 {id}.webm, as distributed, named by the json files

The json files are something-something-v2-labels.json (from template to class), -train.json and
-validation.json (lists of objects with id and template). In -train.json and -validation.json,
templates have placeholders in square brackets, such as "Holding [something]". The brackets are
removed before the template is looked up.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.class_names import in_order, read_json
from slowfast_patches.datasets.lists.csv_list import LabelledVideo, read_kinetics
from slowfast_patches.datasets.lists.frame_list import (
    FrameVideo,
    LabelledFrames,
    is_frame_list,
    read_charades,
)
from slowfast_patches.datasets.reading.shared_list import SharedList
from slowfast_patches.utils.tables import shorten_list

_NAME = "something-something-v2-{}.json"
_SPLITS = {"train": "train", "val": "validation", "test": "validation"}
_WEBM_FOLDER = "20bn-something-something-v2"
"""Folder that the distributed archives unpack to."""
_TRIED = 20
"""Videos to look for when locating the folder of the files."""


def labels_file(folder: Path, split: str) -> Path:
    """Return the json file with the videos of a split and their templates."""
    return folder / _NAME.format(_SPLITS[split])


def read_ssv2(
    recipe: Recipe, path: Path, split: str
) -> SharedList[LabelledVideo] | SharedList[FrameVideo]:
    """Read the videos of a split that `path` lists, each with its `label`.

    Raises:
        ValueError: A list or json file is missing or invalid, or they do not have the same videos.
    """
    classes = recipe.model.num_classes
    if path.suffix == ".json":
        if not path.is_file():
            raise ValueError(
                f"'{path.parent}' has neither {split}.csv nor {path.name}; "
                "set DATA.PATH_TO_DATA_DIR to the folder that has one"
            )
        return SharedList(webm_videos(path, recipe.data.path_prefix, classes))
    if not is_frame_list(path):
        return read_kinetics(recipe, path, split)
    videos = read_charades(recipe, path, split)
    file = labels_file(Path(recipe.data.path_to_data_dir), split)
    labels = _read_ids(file, classes)
    if odd := sorted(labels.keys() ^ {video.name for video in videos}):
        raise ValueError(
            f"{path} lists {len(videos)} videos and {file.name} {len(labels)}, which must be the "
            f"same; only one of them has: {shorten_list(odd)}"
        )
    return SharedList(
        replace(video, runs=(LabelledFrames(video.runs[-1].end, (labels[video.name],)),))
        for video in videos
    )


def webm_videos(file: Path, prefix: str, num_classes: int) -> Sequence[LabelledVideo]:
    """Return the WebM files of the videos in a json file, {id}.webm, with their classes.

    The files are in `prefix`. By default they are in the folder of the json file, or in the folder
    that the archives unpack to if it has one of the first videos.

    Raises:
        ValueError: A json file is missing or invalid.
    """
    labels = _read_ids(file, num_classes)
    folder = Path(prefix) if prefix else file.parent
    unpacked = file.parent / _WEBM_FOLDER
    if not prefix and any((unpacked / f"{name}.webm").exists() for name in [*labels][:_TRIED]):
        folder = unpacked
    return [LabelledVideo(str(folder / f"{name}.webm"), n) for name, n in labels.items()]


def ssv2_classes(folder: Path) -> tuple[str, ...] | None:
    """Return the templates without brackets, in the order of their classes.

    Returns:
        The templates, or None if the folder has no file of them.

    Raises:
        ValueError: The file is invalid.
    """
    path = folder / _NAME.format("labels")
    return in_order(path, _read_classes(path, sys.maxsize)) if path.is_file() else None


def _read_ids(path: Path, num_classes: int) -> dict[str, int]:
    """Read the class of each video of a split, by its id."""
    classes = _read_classes(path.with_name(_NAME.format("labels")), num_classes)
    labels = dict[str, int]()
    for number, entry in enumerate(read_json(path, list)):
        try:
            name = str(entry["id"])
            label = classes[_without_brackets(entry["template"])]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path}, entry {number}: {entry!r:.100} has no id, or no template of "
                f"{_NAME.format('labels')}: {error}"
            ) from None
        if name in labels:
            raise ValueError(f"{path}, entry {number}: the id {name} occurs twice")
        labels[name] = label
    if not labels:
        raise ValueError(f"{path} has no videos")
    return labels


def _read_classes(path: Path, num_classes: int) -> dict[str, int]:
    classes = dict[str, int]()
    for template, number in read_json(path, dict).items():
        if not str(number).isdecimal() or int(number) >= num_classes:
            raise ValueError(
                f"{path}, entry {template!r}: {number!r} is not a class number below "
                f"MODEL.NUM_CLASSES {num_classes}"
            )
        classes[_without_brackets(template)] = int(number)
    return classes


def _without_brackets(template: str) -> str:
    return template.replace("[", "").replace("]", "")
