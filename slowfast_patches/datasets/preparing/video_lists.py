"""Lists of videos to prepare: from csv files, from Something-Something's json files, or from
folders named after classes."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slowfast_patches.datasets.lists.csv_list import LabelledVideo, read_csv, split_line
from slowfast_patches.datasets.lists.dataset_lists import TEST_IS_VAL
from slowfast_patches.datasets.lists.ssv2_list import labels_file, ssv2_classes, webm_videos
from slowfast_patches.datasets.reading.files import video_files
from slowfast_patches.utils.files import write_text
from slowfast_patches.utils.tables import first_few

__all__ = [
    "VideoList",
    "find_classes",
    "format_csv",
    "list_titles",
    "read_lists",
    "read_ssv2_lists",
    "write_class_lists",
    "write_classes",
]

logger = logging.getLogger(__name__)

_SPLITS = ("train", "val", "test")

_Classes = Mapping[str, list[str]]
"""The videos of each class, by the class's name."""


@dataclass(frozen=True)
class VideoList:
    """The videos of one csv file."""

    name: str
    """Of the csv file, without its folder."""
    origin: Path
    """The csv file, or the folder it was made from; absolute."""
    root: Path
    """The folder from which relative paths are taken; absolute."""
    videos: Sequence[LabelledVideo]


def read_lists(csvs: Sequence[Path], *, prefix: str, separator: str) -> list[VideoList]:
    """The lists in some csv files; relative paths are taken from `prefix`, or from the file's own
    folder where that is empty.

    Raises:
        ValueError: a file is missing or does not parse, or two have the same name.
    """
    if len({csv.name for csv in csvs}) < len(csvs):
        raise ValueError("two lists of --csv have the same name; prepare them apart")
    return [
        VideoList(
            csv.name,
            Path(os.path.abspath(csv)),
            Path(os.path.abspath(prefix or csv.parent)),
            read_csv(csv, prefix=prefix, separator=separator),
        )
        for csv in csvs
    ]


def read_ssv2_lists(folder: Path, *, prefix: str) -> tuple[list[VideoList], Sequence[str]]:
    """train.csv and val.csv of Something-Something's WebM files, and its classes in their order.

    The files are those that the json files in `folder` name; they are looked for in `prefix`, or in
    and below `folder` where that is empty.

    Raises:
        ValueError: a json file is missing or wrong, with entry; or classes are not numbered from 0.
    """
    lists = list[VideoList]()
    for split in ("train", "val"):
        file = labels_file(Path(os.path.abspath(folder)), split)
        videos = webm_videos(file, prefix, sys.maxsize)
        root = Path(os.path.abspath(videos[0].path)).parent
        lists.append(VideoList(f"{split}.csv", file, root, videos))
    return lists, ssv2_classes(folder) or ()


def format_csv(rows: Iterable[tuple[str, int]], separator: str) -> str:
    """The csv file of some paths and labels.

    Raises:
        ValueError: a path that would not be read back as it is.
    """
    lines = list[str]()
    between = separator.replace("\\t", "\t")
    for path, label in rows:
        line = f"{path}{between}{label}"
        encodable = line.encode(errors="ignore").decode() == line
        if not encodable or line.splitlines() != [line] or split_line(line, between)[0] != path:
            raise ValueError(f"{path!r}: a csv file cannot express this name; rename the file")
        lines.append(line + "\n")
    return "".join(lines)


def list_titles(lists: Iterable[VideoList]) -> dict[str, str]:
    """What to call each list, by its name: "test.csv (test is val)" where the two are the same."""
    videos = {listed.name: list(listed.videos) for listed in lists}
    titles = {name: name for name in videos}
    if "test.csv" in videos and videos["test.csv"] == videos.get("val.csv"):
        titles["test.csv"] += f" ({TEST_IS_VAL})"
    return titles


def find_classes(
    folder: Path, val_fraction: float | None = None
) -> tuple[list[VideoList], Sequence[str]]:
    """train.csv, val.csv and test.csv of the videos in `folder`/<class>/ or in
    `folder`/{train,val,test}/<class>/, and the classes in the order of their names.

    Without the second form, `val_fraction` of each class (0.1 if None; at least one video of every
    class that has two) is set aside for validation: always the same videos, and most of them still
    the same when others are added. A missing test split is the validation split, and the other way
    round. What lies beside the videos of a class is named in a warning.

    Raises:
        ValueError: no such folder, no classes, a class without videos, one that is validated and
            not trained, no train split, or a fraction where the split is given.
    """
    folder = Path(os.path.abspath(folder))
    if not folder.is_dir():
        raise ValueError(f"--folder {folder}: no such folder")
    names = _folders(folder)
    if names and set(names) <= set(_SPLITS):
        if val_fraction is not None:
            raise ValueError(f"--val-fraction: {folder} is split already ({', '.join(names)})")
        splits = {split: _classes(folder / split) for split in names}
        evaluated = splits.get("val") or splits.get("test")
        if "train" not in splits or evaluated is None:
            raise ValueError(f"{folder} holds {', '.join(names)} alone; add the other split")
        splits = {"val": evaluated, "test": evaluated} | splits
    else:
        train, val = _set_aside(folder, 0.1 if val_fraction is None else val_fraction)
        splits = {"train": train, "val": val, "test": val}
    classes = sorted(splits["train"])
    lists = list[VideoList]()
    for split in _SPLITS:
        if unknown := sorted(set(splits[split]) - set(classes)):
            raise ValueError(f"{folder / split / unknown[0]}: train/ has no class of this name")
        listed = ((n, p) for n, name in enumerate(classes) for p in splits[split].get(name, ()))
        videos = [LabelledVideo(path, number) for number, path in listed]
        lists.append(VideoList(f"{split}.csv", folder, folder, videos))
    return lists, classes


def write_class_lists(
    lists: Sequence[VideoList], classes: Sequence[str], folder: Path, separator: str
) -> None:
    """Write csv files and classes.json into the folder of the classes itself.

    Raises:
        ValueError: a file of that name is there already and says something else, or a csv file
            cannot express a path.
    """
    texts = dict[Path, str]()
    for videos in lists:
        rows = ((os.path.relpath(path, videos.root), label) for path, label in videos.videos)
        texts[folder / videos.name] = format_csv(rows, separator)
    for path, text in texts.items():
        _check_same(path, text)
    write_classes(classes, folder)
    for path, text in texts.items():
        write_text(path, text)


def write_classes(classes: Sequence[str], folder: Path) -> None:
    """Write classes.json: the number of each class by its name. Raises as `write_class_lists`."""
    numbers = {name: number for number, name in enumerate(classes)}
    text = json.dumps(numbers, ensure_ascii=False, indent=2) + "\n"
    _check_same(folder / "classes.json", text)
    write_text(folder / "classes.json", text)


def _check_same(path: Path, text: str) -> None:
    if path.exists() and path.read_text(encoding="utf-8-sig") != text:
        raise ValueError(f"{path} exists and says something else; move it away first")


def _folders(folder: Path) -> list[str]:
    return sorted(e.name for e in os.scandir(folder) if e.is_dir() and e.name[0] != ".")


def _classes(folder: Path) -> _Classes:
    """The classes in a folder."""
    classes = {name: video_files(folder / name) for name in _folders(folder)}
    if not classes:
        raise ValueError(f"{folder}: no folders in it; one for each class is expected")
    for name, videos in classes.items():
        if not videos:
            raise ValueError(f"{folder / name}: no videos in it; each class has a folder of videos")
        paths = (str(path) for path in (folder / name).iterdir() if path.name[0] != ".")
        if beside := sorted(set(paths) - set(videos)):
            logger.warning("warning: no videos, and not looked into: %s", first_few(beside))
    return classes


def _set_aside(folder: Path, fraction: float) -> tuple[_Classes, _Classes]:
    """Part a fraction of each class from it, chosen by a hash of the videos' names."""
    if not 0 < fraction < 1:
        raise ValueError(f"--val-fraction is {fraction}: give a number between 0 and 1")

    def lot(path: str) -> bytes:
        return hashlib.sha256(os.fsencode(os.path.relpath(path, folder))).digest()

    train = dict[str, list[str]]()
    val = dict[str, list[str]]()
    for name, paths in _classes(folder).items():
        count = min(len(paths) - 1, max(1, round(fraction * len(paths))))
        val[name] = sorted(sorted(paths, key=lot)[:count])
        train[name] = sorted({*paths} - {*val[name]})
    if not any(val.values()):
        raise ValueError(f"{folder}: no class has two videos, so that none can be set aside")
    return train, val
