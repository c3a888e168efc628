"""Read the lists of Something-Something V2.

There are three formats, which differ in the file train.csv:

    train.csv with the header of a frame list    JPEG frames; the json files give the classes
    train.csv with lines "path label"            video files, as written by multigrid-prepare
    no train.csv                                 the distributed files {id}.webm; the json files
                                                 give the ids and the classes

The json files are something-something-v2-labels.json (maps templates to class indices),
something-something-v2-train.json and something-something-v2-validation.json (lists of objects with
id and template). In the last two files, templates have placeholders in square brackets, such as
"Holding [something]". The brackets are removed before the template is looked up.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.class_names import in_order, read_json
from slowfast_patches.datasets.lists.csv_list import LabelledVideo, check_labels, read_kinetics
from slowfast_patches.datasets.lists.frame_list import (
    FrameVideo,
    is_frame_list,
    read_charades,
)
from slowfast_patches.datasets.reading.scanned_video import SharedList
from slowfast_patches.utils.errors import UserError, mistake_in
from slowfast_patches.utils.storage import as_path
from slowfast_patches.utils.tables import shorten_list

_NAME = "something-something-v2-{}.json"
_SPLITS = {"train": "train", "val": "validation", "test": "validation"}
_WEBM_FOLDER = "20bn-something-something-v2"
"""Name of the folder that is created when the distributed archives are unpacked."""


def labels_file(folder: Path, split: str) -> Path:
    """Return the path of the json file that lists the videos of a split and their templates."""
    return folder / _NAME.format(_SPLITS[split])


def read_ssv2(
    recipe: Recipe, path: Path, split: str
) -> SharedList[LabelledVideo] | SharedList[FrameVideo]:
    """Read the videos of a split, each with a `label`.

    Args:
        recipe: The recipe.
        path: The csv file, or the json file, that lists the videos.
        split: "train", "val" or "test".

    Raises:
        ValueError: A csv or json file is missing or invalid, or a frame list and the json file do
            not contain the same videos.
    """
    classes = recipe.model.num_classes
    if path.suffix == ".json":
        if not path.is_file():
            raise UserError(
                f"'{path.parent}' contains neither {split}.csv nor {path.name}. "
                "Set DATA.PATH_TO_DATA_DIR to a folder that contains one of them"
            )
        return SharedList(webm_videos(path, recipe.data.path_prefix, classes))
    if not is_frame_list(path):
        return read_kinetics(recipe, path, split)
    videos = read_charades(recipe, path, split)
    labels = _read_ids(labels_file(as_path(recipe.data.path_to_data_dir), split), classes)
    if odd := sorted(labels.keys() ^ {video.name for video in videos}):
        raise UserError(
            f"{path} and its json file must list the same videos. These are only in one of the "
            f"files: {shorten_list(odd)}"
        )
    return SharedList(
        replace(video, labels=((labels[video.name],),) * len(video.labels)) for video in videos
    )


def webm_videos(file: Path, prefix: str, num_classes: int) -> Sequence[LabelledVideo]:
    """Return the paths and classes of the WebM files whose ids are in a json file.

    Args:
        file: The json file of a split.
        prefix: Folder of the WebM files. By default, the folder "20bn-something-something-v2"
            beside the json file if it exists, and otherwise the folder of the json file.
        num_classes: Number of classes. Class indices must be smaller.

    Raises:
        ValueError: A json file is missing or invalid.
    """
    unpacked = file.parent / _WEBM_FOLDER
    folder = as_path(prefix) if prefix else unpacked if unpacked.is_dir() else file.parent
    ids = _read_ids(file, num_classes).items()
    return [LabelledVideo(str(folder / f"{name}.webm"), label) for name, label in ids]


def ssv2_classes(folder: Path) -> tuple[str, ...] | None:
    """Read the class names, which are the templates without brackets.

    Returns:
        The names in the order of the class indices, or None if the folder does not contain
        something-something-v2-labels.json.

    Raises:
        ValueError: The file is invalid.
    """
    path = folder / _NAME.format("labels")
    return in_order(path, _read_classes(path, sys.maxsize)) if path.is_file() else None


def _read_ids(path: Path, num_classes: int) -> dict[str, int]:
    """Read the json file of a split, and return a dict from video id to class index."""
    classes = _read_classes(path.with_name(_NAME.format("labels")), num_classes)
    entries = read_json(path, list)
    text = f"{path} must list objects with an id, and with a template of the labels file"
    with mistake_in(text, LookupError, TypeError, AttributeError):
        ids = [(str(row["id"]), classes[_without_brackets(row["template"])]) for row in entries]
    if not ids:
        raise UserError(f"{path} contains no videos")
    counts = Counter(name for name, _ in ids)
    if again := [name for name, count in counts.items() if count > 1]:
        raise UserError(
            f"{path} lists {len(again)} id(s) more than once: {shorten_list(again)}. Remove all "
            "entries of each except the right one"
        )
    return dict(ids)


def _read_classes(path: Path, num_classes: int) -> dict[str, int]:
    content = read_json(path, dict).items()
    text = f"{path} must map each template to a class index"
    with mistake_in(text, ValueError, TypeError, OverflowError):
        classes = {_without_brackets(template): int(number) for template, number in content}
    if len(classes) < len(content):
        raise UserError(f"{path} has templates that differ only in their square brackets")
    check_labels(path, {n: f"entry {template!r}" for template, n in classes.items()}, num_classes)
    return classes


def _without_brackets(template: str) -> str:
    return template.replace("[", "").replace("]", "")
