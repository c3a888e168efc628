"""The lists of Something-Something V2, in the forms in which users have them.

    train.csv with the header of frame lists     JPEG frames; classes from the json files
    train.csv without it: "path label"           video files, as multigrid-prepare writes them
    no train.csv                                 {id}.webm, as distributed, named by the json files

The json files: something-something-v2-labels.json (template -> class), -train.json and
-validation.json (a list of objects with id and template). A template has its placeholders in square
brackets, "Holding [something]", and is looked up without these.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.class_names import in_order
from slowfast_patches.datasets.lists.csv_list import LabelledVideo, read_csv, read_utf8
from slowfast_patches.datasets.lists.frame_list import first_line, is_header, read_frame_list
from slowfast_patches.utils.tables import first_few

__all__ = ["labels_file", "read_ssv2", "ssv2_classes", "ssv2_path", "webm_videos"]

_NAME = "something-something-v2-{}.json"
_SPLITS = {"train": "train", "val": "validation", "test": "validation"}
_WEBM_FOLDER = "20bn-something-something-v2"
"""Into which the distributed archives unpack."""
_TRIED = 20
"""Videos that are looked for to find out in which folder they are."""


def ssv2_path(recipe: Recipe, split: str) -> Path:
    """The file that lists a split: a csv if there is one (test: val.csv will do), else the json."""
    folder = Path(recipe.data.path_to_data_dir)
    names = ("test.csv", "val.csv") if split == "test" else (f"{split}.csv",)
    csvs = [folder / name for name in names if (folder / name).is_file()]
    return csvs[0] if csvs else labels_file(folder, split)


def labels_file(folder: Path, split: str) -> Path:
    """The json file that names the videos of a split and their templates."""
    return folder / _NAME.format(_SPLITS[split])


def read_ssv2(recipe: Recipe, split: str) -> Sequence[Any]:
    """The videos of a split: a `FrameList` or a list of `LabelledVideo`, each with its `label`.

    Raises:
        ValueError: a list or a json file is missing or says something wrong, or they do not have
            the same videos; with file, and line or entry.
    """
    path = ssv2_path(recipe, split)
    data = recipe.data
    classes = recipe.model.num_classes
    if path.suffix == ".json":
        if not path.is_file():
            raise ValueError(
                f"'{path.parent}' has neither {split}.csv nor {path.name}; "
                "set DATA.PATH_TO_DATA_DIR to the folder that has one"
            )
        return webm_videos(path, data.path_prefix, classes)
    prefix = data.path_prefix
    separator = data.path_label_separator
    if not is_header(first_line(path)):
        return read_csv(path, prefix=prefix, separator=separator, num_classes=classes)
    file = labels_file(Path(data.path_to_data_dir), split)
    labels = _read_ids(file, classes)
    frames = read_frame_list(path, prefix=prefix, num_classes=classes, fps=float(data.target_fps))
    names = frames.video_names
    if odd := sorted(labels.keys() ^ names):
        raise ValueError(
            f"{path} lists {len(names)} videos and {file.name} {len(labels)}, which must be the "
            f"same; in one of them alone: {first_few(odd)}"
        )
    return frames.with_labels([labels[name] for name in names])


def webm_videos(file: Path, prefix: str, num_classes: int) -> list[LabelledVideo]:
    """The WebM files of a json file's videos, {id}.webm, with their classes.

    They are in `prefix`; where that is empty in the json file's folder or in the one that the
    archives unpack to, whichever has one of the first.

    Raises:
        ValueError: as `read_ssv2` says of json files.
    """
    labels = _read_ids(file, num_classes)
    names = [f"{name}.webm" for name in labels]
    folders = [prefix] if prefix else [str(file.parent), str(file.parent / _WEBM_FOLDER)]
    chosen = folders[0]
    for folder in reversed(folders):
        if any(os.path.exists(os.path.join(folder, name)) for name in names[:_TRIED]):
            chosen = folder
    paths = (os.path.join(chosen, name) for name in names)
    return [LabelledVideo(*video) for video in zip(paths, labels.values(), strict=True)]


def ssv2_classes(folder: Path) -> tuple[str, ...] | None:
    """The templates by class number, without brackets; None where the folder has no such file.

    Raises:
        ValueError: the file is wrong; says where.
    """
    path = folder / _NAME.format("labels")
    return (
        in_order(path, list(_read_classes(path, sys.maxsize).items())) if path.is_file() else None
    )


def _read_ids(path: Path, num_classes: int) -> dict[str, int]:
    """The class of each video of a split, by its id."""
    file = path.with_name(_NAME.format("labels"))
    classes = _read_classes(file, num_classes)
    labels = dict[str, int]()
    for number, entry in enumerate(_load(path, list)):
        try:
            name = str(entry["id"])
            template = _stripped(str(entry["template"]))
        except (KeyError, TypeError):
            raise ValueError(
                f"{path}, entry {number}: {entry!r:.100} is not an object with id and template"
            ) from None
        if template not in classes:
            raise ValueError(
                f"{path}, entry {number} (id {name}): {file.name} has no template {template!r}"
            )
        if name in labels:
            raise ValueError(f"{path}, entry {number}: id {name} is there twice")
        labels[name] = classes[template]
    if not labels:
        raise ValueError(f"{path}: no videos in it")
    return labels


def _read_classes(path: Path, num_classes: int) -> dict[str, int]:
    classes = dict[str, int]()
    for template, number in _load(path, dict).items():
        if not str(number).isdecimal() or int(number) >= num_classes:
            raise ValueError(
                f"{path}, entry {template!r}: {number!r} is not a class number below "
                f"MODEL.NUM_CLASSES {num_classes}"
            )
        classes[_stripped(template)] = int(number)
    return classes


def _load(path: Path, kind: type) -> Any:
    if not path.is_file():
        raise ValueError(f"{path}: no such file; the json files belong together, in one folder")
    try:
        content = json.loads(read_utf8(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, kind):
        raise ValueError(f"{path} is not a {kind.__name__} but a {type(content).__name__}")
    return content


def _stripped(template: str) -> str:
    return template.replace("[", "").replace("]", "")
