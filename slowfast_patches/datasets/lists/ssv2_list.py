"""The lists of Something-Something V2, in the forms in which users have them.

    train.csv with the header of frame lists     JPEG frames; classes from the json files
    train.csv without it: "path label"           video files, as multigrid-prepare writes them
    no train.csv                                 {id}.webm, as distributed, named by the json files

The json files: something-something-v2-labels.json (template -> class), -train.json and
-validation.json (a list of objects with id and template). A template has its placeholders in square
brackets, "Holding [something]", and is looked up without these.
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
from slowfast_patches.utils.tables import first_few

__all__ = ["labels_file", "read_ssv2", "ssv2_classes", "webm_videos"]

_NAME = "something-something-v2-{}.json"
_SPLITS = {"train": "train", "val": "validation", "test": "validation"}
_WEBM_FOLDER = "20bn-something-something-v2"
"""Into which the distributed archives unpack."""
_TRIED = 20
"""Videos that are looked for to find out in which folder they are."""


def labels_file(folder: Path, split: str) -> Path:
    """The json file that names the videos of a split and their templates."""
    return folder / _NAME.format(_SPLITS[split])


def read_ssv2(
    recipe: Recipe, path: Path, split: str
) -> SharedList[LabelledVideo] | SharedList[FrameVideo]:
    """The videos of a split that `path` lists, each with its `label`.

    Raises:
        ValueError: a list or a json file is missing or says something wrong, or they do not have
            the same videos; with file, and line or entry.
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
            f"same; in one of them alone: {first_few(odd)}"
        )
    return SharedList(
        replace(video, runs=(LabelledFrames(video.runs[-1].end, (labels[video.name],)),))
        for video in videos
    )


def webm_videos(file: Path, prefix: str, num_classes: int) -> Sequence[LabelledVideo]:
    """The WebM files of a json file's videos, {id}.webm, with their classes.

    They are in `prefix`; where that is empty in the json file's folder or in the one that the
    archives unpack to, whichever has one of the first.

    Raises:
        ValueError: as `read_ssv2` says of json files.
    """
    labels = _read_ids(file, num_classes)
    folder = Path(prefix) if prefix else file.parent
    unpacked = file.parent / _WEBM_FOLDER
    if not prefix and any((unpacked / f"{name}.webm").exists() for name in [*labels][:_TRIED]):
        folder = unpacked
    return [LabelledVideo(str(folder / f"{name}.webm"), n) for name, n in labels.items()]


def ssv2_classes(folder: Path) -> tuple[str, ...] | None:
    """The templates by class number, without brackets; None where the folder has no such file.

    Raises:
        ValueError: the file is wrong; says where.
    """
    path = folder / _NAME.format("labels")
    return in_order(path, _read_classes(path, sys.maxsize)) if path.is_file() else None


def _read_ids(path: Path, num_classes: int) -> dict[str, int]:
    """The class of each video of a split, by its id."""
    classes = _read_classes(path.with_name(_NAME.format("labels")), num_classes)
    labels = dict[str, int]()
    for number, entry in enumerate(read_json(path, list)):
        try:
            name = str(entry["id"])
            label = classes[_stripped(entry["template"])]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path}, entry {number}: {entry!r:.100} has no id, or no template of "
                f"{_NAME.format('labels')}: {error}"
            ) from None
        if name in labels:
            raise ValueError(f"{path}, entry {number}: id {name} is there twice")
        labels[name] = label
    if not labels:
        raise ValueError(f"{path}: no videos in it")
    return labels


def _read_classes(path: Path, num_classes: int) -> dict[str, int]:
    classes = dict[str, int]()
    for template, number in read_json(path, dict).items():
        if not str(number).isdecimal() or int(number) >= num_classes:
            raise ValueError(
                f"{path}, entry {template!r}: {number!r} is not a class number below "
                f"MODEL.NUM_CLASSES {num_classes}"
            )
        classes[_stripped(template)] = int(number)
    return classes


def _stripped(template: str) -> str:
    return template.replace("[", "").replace("]", "")
