"""The list of any data set by its name in the config: its file, its videos, its classes' names."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slowfast_patches import patching
from slowfast_patches.config.check import SEVERAL_LABELS
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.class_names import in_order, named_classes
from slowfast_patches.datasets.lists.csv_list import LabelledVideo, csv_path, read_csv, read_utf8
from slowfast_patches.datasets.lists.frame_list import FrameList, read_frame_list
from slowfast_patches.datasets.lists.ssv2_list import read_ssv2, ssv2_classes, ssv2_path

__all__ = ["class_names", "count_list", "list_digest", "list_path", "read_list"]


def read_list(recipe: Recipe, split: str, dataset: str | None = None) -> Sequence[Any]:
    """The videos of a split, each with its `path`.

    `dataset` is kinetics, ssv2 or charades; by default what TRAIN.DATASET says, or, of the test
    split, TEST.DATASET.

    Raises:
        ValueError: no such data set; the recipe asks for what it cannot give; no list, or one that
            says something wrong, with file and line.
    """
    name, kind = _kind(recipe, split, dataset)
    if (known := SEVERAL_LABELS.get(name, False)) != recipe.data.multi_label:
        count = "several labels" if known else "one label"
        raise ValueError(f"set DATA.MULTI_LABEL {known} for {name}, which has {count} a video")
    if split == "train" and recipe.data.random_flip and not kind.mirrors:
        raise ValueError(
            f"set DATA.RANDOM_FLIP False for {name}, where left and right have meaning"
        )
    return kind.read(recipe, split)


def list_path(recipe: Recipe, split: str, dataset: str | None = None) -> Path:
    """The file that lists a split; `dataset` as for `read_list`. It need not be there."""
    return _kind(recipe, split, dataset)[1].path(recipe, split)


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
        names, runs = videos.names, videos.runs
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
    names = _kind(recipe, "train", None)[1].classes(recipe)
    if names is not None and (count := len(names)) != recipe.model.num_classes:
        ours, folder = recipe.model.num_classes, recipe.data.path_to_data_dir
        said = f"MODEL.NUM_CLASSES is {ours}, and {folder} names {count} classes"
        raise ValueError(f"{said}; set MODEL.NUM_CLASSES {count}")
    return names


@dataclass(frozen=True)
class _Kind:
    """A data set: the functions of its lists, and what its labels are."""

    path: Callable[[Recipe, str], Path]
    read: Callable[[Recipe, str], Sequence[Any]]
    classes: Callable[[Recipe], tuple[str, ...] | None]
    mirrors: bool = True
    """Whether a mirrored clip has the label of the clip."""


def _kind(recipe: Recipe, split: str, dataset: str | None) -> tuple[str, _Kind]:
    key = "TEST.DATASET" if split == "test" else "TRAIN.DATASET"
    said = dataset or (recipe.test.dataset if split == "test" else recipe.train.dataset)
    name = said.lower()
    if name not in _KINDS and _is_registered(name):
        return name, _KINDS["kinetics"]
    if name not in _KINDS:
        raise ValueError(f"{key} {said!r} is no data set; there are {', '.join(_KINDS)}")
    return name, _KINDS[name]


def _is_registered(name: str) -> bool:
    """Whether a user has put a data set of that name into the host's registry, whose own are not
    meant; its lists are as Kinetics'."""
    patching.apply()
    from slowfast.datasets.build import DATASET_REGISTRY

    found = DATASET_REGISTRY._obj_map.get(name.capitalize())
    return found is not None and not found.__module__.startswith("slowfast.")


def _read_kinetics(recipe: Recipe, split: str) -> list[LabelledVideo]:
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
        found = re.fullmatch(r"c(\d+)\s+(\S.*)", text.strip())
        if found:
            classes.append((found[2], int(found[1])))
        elif text.strip():
            raise ValueError(f"{path}, line {line}: {text!r:.100} is not 'c000 name'")
    return in_order(path, classes)


_KINDS: dict[str, _Kind] = {
    "kinetics": _Kind(csv_path, _read_kinetics, _kinetics_classes),
    "ssv2": _Kind(ssv2_path, read_ssv2, _ssv2_classes, mirrors=False),
    "charades": _Kind(_charades_path, _read_charades, _charades_classes),
}
