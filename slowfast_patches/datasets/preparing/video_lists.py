"""Collect the videos to prepare.

The sources are csv files, the json files of Something-Something, or folders of videos, one folder
per class.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slowfast_patches.datasets.lists.csv_list import (
    LabelledVideo,
    check_separator,
    read_csv,
    split_line,
    split_lines,
)
from slowfast_patches.datasets.lists.ssv2_list import labels_file, ssv2_classes, webm_videos
from slowfast_patches.datasets.reading.formats import video_files
from slowfast_patches.utils.errors import UserError, mistake_in
from slowfast_patches.utils.storage import absolute
from slowfast_patches.utils.tables import shorten_list

logger = logging.getLogger(__name__)

_SPLITS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
"""Names of the folders of each split, in lower case."""

_Classes = Mapping[str, list[str]]
"""Maps class names to the paths of their videos."""


@dataclass(frozen=True)
class VideoList:
    """List of videos that is read from, or will be written to, one csv file."""

    name: str
    """Name of the csv file without the folder."""
    origin: Path
    """Absolute path of the csv or json file, or of the folder, that the list was made from."""
    root: Path
    """Absolute path of the folder to which the paths in the csv file are relative."""
    videos: Sequence[LabelledVideo]


def read_lists(csvs: Sequence[Path], *, prefix: str, separator: str) -> list[VideoList]:
    """Read csv files of videos.

    Args:
        csvs: Paths of the files.
        prefix: Folder to which the paths in the files are relative. By default the folder of each
            file.
        separator: The separator between path and label.

    Raises:
        ValueError: A file is missing or cannot be parsed, or two files have the same name.
    """
    if len({csv.name for csv in csvs}) < len(csvs):
        raise UserError("two files of --csv have the same name. Prepare them into separate folders")
    if missing := [csv for csv in csvs if not csv.is_file()]:
        raise UserError(f"--csv {missing[0]} does not exist. Give the path of a list of videos")
    return [
        VideoList(
            csv.name,
            absolute(csv),
            absolute(prefix or csv.parent),
            read_csv(csv, prefix=prefix, separator=separator),
        )
        for csv in csvs
    ]


def read_ssv2_lists(folder: Path, *, prefix: str) -> tuple[list[VideoList], Sequence[str]]:
    """Read the lists of Something-Something's WebM files.

    Args:
        folder: Folder of the json files, which contain the ids of the WebM files.
        prefix: Folder of the WebM files. By default the files are searched in `folder` and in its
            subfolder 20bn-something-something-v2.

    Returns:
        The lists train.csv and val.csv, and the class names in the order of the class indices.

    Raises:
        ValueError: A json file is missing or invalid, or the class indices are not 0, 1, 2 and so
            on.
    """
    lists = list[VideoList]()
    for split in ("train", "val"):
        file = labels_file(absolute(folder), split)
        videos = webm_videos(file, prefix, sys.maxsize)
        root = absolute(videos[0].path).parent
        lists.append(VideoList(f"{split}.csv", file, root, videos))
    return lists, ssv2_classes(folder) or ()


def format_csv(rows: Iterable[tuple[str, int]], separator: str) -> str:
    """Return the text of a csv file with a line per (path, label).

    Raises:
        ValueError: Reading the file would not give the same path, for example because the path
            contains a line break.
    """
    check_separator(separator)
    lines = list[str]()
    between = separator.replace("\\t", "\t")
    for path, label in rows:
        line = f"{path}{between}{label}"
        stored = split_lines(line.encode(errors="ignore").decode())
        if stored != [line] or split_line(line, between)[0] != path:
            raise UserError(f"the path {path!r} cannot be written to a csv file. Rename the file")
        lines.append(line + "\n")
    return "".join(lines)


def find_classes(folder: Path, val_fraction: float | None) -> tuple[list[VideoList], Sequence[str]]:
    """Find videos that are sorted into one folder per class.

    The videos are in `folder`/<class>/ or in `folder`/{train,val,test}/<class>/. The folders of the
    splits may have any of the names in `_SPLITS`. If they are in
    `folder`/<class>/, hold out a fraction of each class for validation. The choice is
    deterministic, and most of the held-out videos stay the same if videos are added later.

    If the test split is missing, use the validation split, and vice versa. Log a warning about
    files in the class folders that are not videos.

    Args:
        folder: The folder that contains the folders of the classes or of the splits.
        val_fraction: Fraction of videos to hold out for validation, by default 0.1. At least one
            video is held out from each class that has two or more videos.

    Returns:
        The lists train.csv, val.csv and test.csv, and the class names in alphabetical order.

    Raises:
        ValueError: `folder` does not exist or contains no class folders, a class has no videos, a
            class in val or test is not in train, there is no train split, or `val_fraction` is
            given although there are folders of splits.
    """
    folder = absolute(folder)
    if not os.path.isdir(folder):
        raise UserError(f"--folder {folder} is not a folder on a local disk")
    names = _split_folders(folder)
    if not names:
        splits = _set_aside(folder, 0.1 if val_fraction is None else val_fraction)
    elif val_fraction is not None:
        raise UserError(f"--val-fraction has no effect, because {folder} is already split")
    else:
        splits = {split: _classes(folder / name) for split, name in names.items()}
    evaluated = splits.get("val") or splits.get("test") or {}
    splits = {"train": {}, "val": evaluated, "test": evaluated} | splits
    classes = sorted(splits["train"])
    lists = list[VideoList]()
    for split, videos_of in splits.items():
        if unknown := sorted(set(videos_of) - set(classes)):
            train = folder / names.get("train", "train")
            raise UserError(f"the class {unknown[0]} of {split} is not in {train}")
        videos = [
            LabelledVideo(path, number)
            for number, name in enumerate(classes)
            for path in videos_of.get(name, ())
        ]
        if not videos:
            raise UserError(f"{folder} has no videos for {split}. Add videos")
        lists.append(VideoList(f"{split}.csv", folder, folder, videos))
    return lists, classes


def _folders(folder: Path) -> list[str]:
    with mistake_in(f"the folder {folder} cannot be read"):
        return sorted(e.name for e in os.scandir(folder) if e.is_dir() and e.name[0] != ".")


def _split_folders(folder: Path) -> dict[str, str]:
    """Return the folder name of each split, or an empty dict if not all folders are splits.

    Raises:
        ValueError: A split has two folders.
    """
    found = dict[str, str]()
    for name in _folders(folder):
        split = next((split for split, names in _SPLITS.items() if name.lower() in names), None)
        if split is None:
            return {}
        if split in found:
            raise UserError(
                f"{folder} has two folders for {split}: {found[split]} and {name}. Remove one"
            )
        found[split] = name
    return found


def _classes(folder: Path) -> _Classes:
    """Return the paths of the videos in each class folder, by class name."""
    names = _folders(folder)
    with mistake_in(f"a folder in {folder} cannot be read"):
        classes = {name: video_files(folder / name) for name in names}
    if not classes:
        raise UserError(f"{folder} has no subfolders, but must have a folder for each class")
    for name, videos in classes.items():
        if not videos:
            inside = " but folders" if _folders(folder / name) else ""
            raise UserError(
                f"{folder / name} has no videos{inside}. Each folder here must be a class with "
                "videos, or all of them must be splits (train, val and test) with folders of "
                "classes. docs/data.md lists the suffixes of video files"
            )
        paths = {str(path) for path in (folder / name).iterdir() if path.name[0] != "."}
        if others := sorted(paths - set(videos)):
            logger.warning(
                "warning: these files and folders are ignored, because they are not videos: %s",
                shorten_list(others),
            )
    return classes


def _set_aside(folder: Path, fraction: float) -> dict[str, _Classes]:
    """Hold out a fraction of the videos of each class for validation, by a hash of their paths."""
    if not 0 < fraction < 1:
        raise UserError(f"--val-fraction is {fraction}, but must be between 0 and 1")

    def lot(path: str) -> bytes:
        return hashlib.sha256(os.fsencode(os.path.relpath(path, folder))).digest()

    train = dict[str, list[str]]()
    val = dict[str, list[str]]()
    for name, paths in _classes(folder).items():
        count = min(len(paths) - 1, max(1, round(fraction * len(paths))))
        chosen = sorted(paths, key=lot)
        val[name] = sorted(chosen[:count])
        train[name] = sorted(chosen[count:])
    return {"train": train, "val": val}
