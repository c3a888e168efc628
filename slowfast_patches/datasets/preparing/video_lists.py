"""Collect the videos to prepare.

They come from csv files, from Something-Something's json files, or from one folder per class.
"""

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
from slowfast_patches.datasets.reading.containers import video_files
from slowfast_patches.utils.files import write_text
from slowfast_patches.utils.tables import shorten_list

logger = logging.getLogger(__name__)

_SPLITS = ("train", "val", "test")

_Classes = Mapping[str, list[str]]
"""Videos by class name."""


@dataclass(frozen=True)
class VideoList:
    """Videos of one csv file."""

    name: str
    """Name of the csv file, without its folder."""
    origin: Path
    """Absolute path of the csv file, or of the folder that the list was made from."""
    root: Path
    """Absolute path of the folder of relative paths."""
    videos: Sequence[LabelledVideo]


def read_lists(csvs: Sequence[Path], *, prefix: str, separator: str) -> list[VideoList]:
    """Read csv files of videos.

    Args:
        csvs: The files.
        prefix: The folder of relative paths. By default the folder of each file.
        separator: The separator between path and label.

    Raises:
        ValueError: A file is missing or does not parse, or two files have the same name.
    """
    if len({csv.name for csv in csvs}) < len(csvs):
        raise ValueError("two lists of --csv have the same name; prepare them separately")
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
    """Read the lists of Something-Something's WebM files.

    Args:
        folder: The folder of the json files, which name the WebM files.
        prefix: The folder of the WebM files. By default they are looked for in and below `folder`.

    Returns:
        The lists train.csv and val.csv, and the class names in order.

    Raises:
        ValueError: A json file is missing or invalid, or classes are not numbered from 0.
    """
    lists = list[VideoList]()
    for split in ("train", "val"):
        file = labels_file(Path(os.path.abspath(folder)), split)
        videos = webm_videos(file, prefix, sys.maxsize)
        root = Path(os.path.abspath(videos[0].path)).parent
        lists.append(VideoList(f"{split}.csv", file, root, videos))
    return lists, ssv2_classes(folder) or ()


def format_csv(rows: Iterable[tuple[str, int]], separator: str) -> str:
    """Return the text of a csv file with these paths and labels.

    Raises:
        ValueError: A path could not be read back from the file.
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
    """Return the title of each list, by its name.

    The title is the name of the list. If test.csv has the same videos as val.csv, its title is
    "test.csv (test is val)".
    """
    videos = {listed.name: list(listed.videos) for listed in lists}
    titles = {name: name for name in videos}
    if "test.csv" in videos and videos["test.csv"] == videos.get("val.csv"):
        titles["test.csv"] += f" ({TEST_IS_VAL})"
    return titles


def find_classes(
    folder: Path, val_fraction: float | None = None
) -> tuple[list[VideoList], Sequence[str]]:
    """Find videos sorted into one folder per class.

    The folders are `folder`/<class>/, or `folder`/{train,val,test}/<class>/. In the first form, set
    `val_fraction` of each class aside for validation. The choice is deterministic, and most of it
    stays the same when videos are added. A missing test split is replaced by the validation split,
    and the other way round. Other files beside the videos of a class cause a warning.

    Args:
        folder: The folder of the classes or splits.
        val_fraction: Fraction for validation, by default 0.1. At least one video of every class
            that has two is set aside.

    Returns:
        The lists train.csv, val.csv and test.csv, and the class names in alphabetical order.

    Raises:
        ValueError: The folder or its classes are missing, a class has no videos or occurs only in
            validation, there is no train split, or `val_fraction` is given although the data is
            split already.
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
            raise ValueError(f"{folder} has only {', '.join(names)}; add the other split")
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
    """Write csv files and classes.json into the folder of the classes.

    Raises:
        ValueError: A file of that name exists and has other content, or a csv file cannot express a
            path.
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
    """Write classes.json, with the number of each class by its name.

    Raises:
        ValueError: The file exists and has other content.
    """
    numbers = {name: number for number, name in enumerate(classes)}
    text = json.dumps(numbers, ensure_ascii=False, indent=2) + "\n"
    _check_same(folder / "classes.json", text)
    write_text(folder / "classes.json", text)


def _check_same(path: Path, text: str) -> None:
    if path.exists() and path.read_text(encoding="utf-8-sig") != text:
        raise ValueError(f"{path} exists with other content; move it away first")


def _folders(folder: Path) -> list[str]:
    return sorted(e.name for e in os.scandir(folder) if e.is_dir() and e.name[0] != ".")


def _classes(folder: Path) -> _Classes:
    """Return the videos of each class in a folder."""
    classes = {name: video_files(folder / name) for name in _folders(folder)}
    if not classes:
        raise ValueError(f"{folder} has no folders; one for each class is expected")
    for name, videos in classes.items():
        if not videos:
            raise ValueError(f"{folder / name} has no videos; each class needs a folder of videos")
        paths = (str(path) for path in (folder / name).iterdir() if path.name[0] != ".")
        if beside := sorted(set(paths) - set(videos)):
            logger.warning(
                "warning: ignored, because they are not videos: %s", shorten_list(beside)
            )
    return classes


def _set_aside(folder: Path, fraction: float) -> tuple[_Classes, _Classes]:
    """Split off a fraction of each class, chosen by a hash of the videos' names."""
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
        raise ValueError(
            f"{folder}: no class has two videos, so none can be set aside for validation"
        )
    return train, val
