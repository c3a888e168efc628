"""Data sets of the package: the path and format of the lists, and the meaning of the labels."""

from __future__ import annotations

import hashlib
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from slowfast_patches.config.load_recipe import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.class_names import in_order, named_classes
from slowfast_patches.datasets.lists.csv_list import (
    data_folder,
    read_kinetics,
    read_utf8,
    split_lines,
)
from slowfast_patches.datasets.lists.frame_list import read_charades
from slowfast_patches.datasets.lists.ssv2_list import labels_file, read_ssv2, ssv2_classes
from slowfast_patches.registry import DATASETS, TASKS, DatasetSpec, register_dataset
from slowfast_patches.utils.errors import UserError, mistake_in
from slowfast_patches.utils.storage import as_path

__all__ = [
    "TEST_IS_VAL",
    "class_names",
    "count_list",
    "dataset_of",
    "fitting_dataset",
    "is_tested_on_val",
    "label_counts",
    "labels_of",
    "list_digest",
    "list_path",
    "load_with_classes",
    "read_list",
]

_CLASSES = "MODEL.NUM_CLASSES"
TEST_IS_VAL = "test is val"
"""Remark that is printed beside test results if the test list equals the validation list."""


def load_with_classes(path: str | Path | None, overrides: Sequence[object] = ()) -> Recipe:
    """Load a recipe, and derive the task and MODEL.NUM_CLASSES from the training data set.

    A key is derived only if it is set neither in the recipe nor in `overrides`. The derived keys
    include those whose default depends on the task (`TASKS`). MODEL.NUM_CLASSES becomes the number
    of class names in the file beside the list, or else the largest label plus one. If the list does
    not exist, MODEL.NUM_CLASSES keeps its default.

    Raises:
        ValueError: As for `load_recipe` and `read_list`.
    """
    recipe = load_recipe(path, overrides)
    given = recipe.given
    switch, on = TASKS[dataset_of(recipe, "train").task].switch
    if switch not in given:
        recipe = recipe.replaced({switch: on})
    defaults = TASKS[recipe.task].defaults
    recipe = recipe.replaced({key: defaults[key] for key in defaults if key not in given})
    if _CLASSES not in given and (count := _count_classes(recipe)):
        return recipe.replaced({_CLASSES: count})
    return recipe


def _count_classes(recipe: Recipe) -> int | None:
    """Return the number of classes in the training data, or None if that cannot be determined."""
    dataset = dataset_of(recipe, "train")
    if names := (dataset.classes or _named_classes)(recipe):
        return len(names)
    if not dataset.has_lists or not list_path(recipe, "train").is_file():
        return None
    videos = read_list(recipe.replaced({_CLASSES: sys.maxsize}), "train")
    return 1 + max(labels_of(videos), default=-1)


def read_list(recipe: Recipe, split: str) -> Sequence[Any]:
    """Read the list of videos of a split.

    `ClipDataset` needs videos with a `path` of a file or folder, and with a `label` or a method
    `classes(first, last)`, which returns the set of all labels of these frames. Other members are
    optional: `annotation` is a text that contains all labels, `name` identifies a video if the path
    does not, and `scanned()` returns the `ScannedVideo` of a video that is stored as frames.

    Raises:
        ValueError: The data set is unknown or contradicts the recipe, or the list is missing or
            invalid.
    """
    dataset = fitting_dataset(recipe, split)
    if dataset.build is not None and not dataset.has_lists:
        videos: Sequence[Any] = dataset.build(recipe, split).videos
    else:
        videos = (dataset.read or read_kinetics)(recipe, list_path(recipe, split), split)
    if not len(videos):
        name = recipe.test.dataset if split == "test" else recipe.train.dataset
        raise UserError(f"the data set {name} has no videos for {split}. Add videos to its list")
    return videos


def fitting_dataset(recipe: Recipe, split: str) -> DatasetSpec:
    """Return the registered `DatasetSpec` of a split, and check that the recipe fits it.

    Raises:
        ValueError: The data set is unknown, has another task than the recipe, or does not allow the
            horizontal flips that the recipe demands.
    """
    dataset = dataset_of(recipe, split)
    if dataset.task != recipe.task:
        wanted = TASKS[dataset.task]
        raise UserError(
            f"the videos of {split} have {wanted.targets} ({' '.join(map(str, wanted.switch))}), "
            f"but the recipe has {' '.join(map(str, TASKS[recipe.task].switch))}. Change this key, "
            "or the data set"
        )
    if split == "train" and recipe.data.random_flip and not dataset.flip_keeps_label:
        raise UserError(
            f"set DATA.RANDOM_FLIP False for {recipe.train.dataset}, because a horizontal flip "
            "would change the meaning of its labels"
        )
    return dataset


def list_path(recipe: Recipe, split: str) -> Path:
    """Return the path of the file that lists a split. The file need not exist."""
    return (dataset_of(recipe, split).path or _csv_path)(recipe, split)


def dataset_of(recipe: Recipe, split: str) -> DatasetSpec:
    """Return the registered `DatasetSpec` of a split.

    TEST.DATASET names the data set of the test split, and TRAIN.DATASET that of other splits.

    Raises:
        ValueError: No data set is registered under this name, or its task is not registered.
    """
    section = recipe.test if split == "test" else recipe.train
    key = "TEST.DATASET" if split == "test" else "TRAIN.DATASET"
    advice = f" For lists of your own videos with a line 'path label' for each, set {key} kinetics."
    dataset = DATASETS.find(section.dataset.lower(), key, advice)
    TASKS.find(dataset.task, f"the task of {section.dataset}")
    return dataset


def count_list(recipe: Recipe, split: str) -> int | None:
    """Return the number of videos in the list of a split, or None if the list does not exist.

    Raises:
        ValueError: As for `read_list`.
    """
    return len(read_list(recipe, split)) if list_path(recipe, split).is_file() else None


def is_tested_on_val(recipe: Recipe) -> bool:
    """Return whether the test list is the same file as the validation list, or a copy of it."""
    test, val = (list_path(recipe, split) for split in ("test", "val"))
    if not (test.is_file() and val.is_file()) or not dataset_of(recipe, "test").has_lists:
        return False
    with mistake_in(f"{test} or {val} cannot be read"):
        return test == val or test.read_bytes() == val.read_bytes()


def list_digest(recipe: Recipe, videos: Sequence[Any], split: str = "train") -> str:
    """Return the SHA-256 hash of the paths and labels in a list, as a hexadecimal string.

    The hash uses the paths relative to DATA.PATH_PREFIX or to the folder of the list, so it stays
    the same when the data is moved. For a frame list, it uses the names of the videos and the
    labels of the frames.
    """
    digest = hashlib.sha256()
    path = list_path(recipe, split)
    root = os.path.join(str(as_path(recipe.data.path_prefix or path.parent)), "")
    for video in videos:
        # Prefer the name of a video, because it does not depend on folders.
        # In a user's data set, videos may be plain integers without a name or a path.
        if (name := getattr(video, "name", None)) is None:
            where = str(getattr(video, "path", video))
            # A json file gives ids, not paths, so the videos may lie in any folder.
            name = Path(where).name if path.suffix == ".json" else where.removeprefix(root)
        label = getattr(video, "annotation", None)
        digest.update(f"{name}\0{label}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def class_names(recipe: Recipe) -> tuple[str, ...] | None:
    """Return the class names of the training data set, or None if there is no file of names.

    Raises:
        ValueError: The file of names is invalid, or the number of names is not MODEL.NUM_CLASSES.
    """
    names = (dataset_of(recipe, "train").classes or _named_classes)(recipe)
    if names is not None and (count := len(names)) != recipe.model.num_classes:
        raise UserError(
            f"MODEL.NUM_CLASSES is {recipe.model.num_classes}, but {recipe.data.path_to_data_dir} "
            f"has the names of {count} classes. Set MODEL.NUM_CLASSES {count}"
        )
    return names


def label_counts(recipe: Recipe, videos: Sequence[Any]) -> list[int]:
    """Return the number of videos of each class, in the order of the class indices.

    Raises:
        ValueError: None of the videos has a method `classes`.
    """
    counts = Counter(labels_of(videos))
    if not counts:
        raise UserError(
            f"SOLVER.CLASS_WEIGHTS needs the labels of all videos, but the data set "
            f"{recipe.train.dataset} has no list of labels. Remove SOLVER.CLASS_WEIGHTS"
        )
    return [counts[number] for number in range(recipe.model.num_classes)]


def labels_of(videos: Sequence[Any]) -> Iterator[int]:
    """Yield every label of every video that has a method `classes`."""
    for video in videos:
        yield from getattr(video, "classes", set)()


# The lists of each data set.


def _csv_path(recipe: Recipe, split: str) -> Path:
    return data_folder(recipe) / f"{split}.csv"


def _csv_or_val_path(recipe: Recipe, split: str) -> Path:
    """Return the path of the csv file of a split. If test.csv does not exist, use val.csv."""
    path = _csv_path(recipe, split)
    return _csv_path(recipe, "val") if split == "test" and not path.is_file() else path


def _ssv2_path(recipe: Recipe, split: str) -> Path:
    path = _csv_or_val_path(recipe, split)
    return path if path.is_file() else labels_file(path.parent, split)


def _named_classes(recipe: Recipe) -> tuple[str, ...] | None:
    return named_classes(data_folder(recipe))


def _ssv2_classes(recipe: Recipe) -> tuple[str, ...] | None:
    # A data set written by multigrid-prepare has classes.json, like Kinetics.
    return ssv2_classes(data_folder(recipe)) or _named_classes(recipe)


def _charades_classes(recipe: Recipe) -> tuple[str, ...] | None:
    """Read Charades_v1_classes.txt, with lines such as "c000 Holding some clothes"."""
    path = data_folder(recipe) / "Charades_v1_classes.txt"
    if not path.is_file():
        return None
    with mistake_in(f"{path} has a line that does not have the form 'c000 name'", ValueError):
        rows = (line.split(maxsplit=1) for line in split_lines(read_utf8(path)) if line.strip())
        classes = {name.rstrip(): int(number.removeprefix("c")) for number, name in rows}
    return in_order(path, classes)


register_dataset("kinetics", DatasetSpec())
register_dataset(
    "ssv2",
    DatasetSpec(
        path=_ssv2_path,
        read=read_ssv2,
        classes=_ssv2_classes,
        flip_keeps_label=False,
        segments=True,
    ),
)
register_dataset(
    "charades",
    DatasetSpec(
        path=_csv_or_val_path,
        read=read_charades,
        classes=_charades_classes,
        task="multi_label",
        counts_frames=True,
        views_to_end=True,
    ),
)
