"""Lists of videos on their way to a prepared data set: read from csv files or Something-Something's
json files, or made from folders named after classes."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slowfast_patches.datasets.lists.csv_list import LabelledVideo, read_csv
from slowfast_patches.datasets.lists.ssv2_list import labels_file, ssv2_classes, webm_videos

__all__ = [
    "ClassFolders",
    "VideoList",
    "find_classes",
    "format_csv",
    "read_lists",
    "read_ssv2_lists",
    "write_class_lists",
    "write_classes",
    "write_text",
]

_SPLITS = ("train", "val", "test")
_VAL_FRACTION = 0.1
_VIDEOS = frozenset(
    [
        ".3gp",
        ".avi",
        ".flv",
        ".m2ts",
        ".m4v",
        ".mkv",
        ".mov",
        ".mp4",
        ".mpeg",
        ".mpg",
        ".mts",
        ".ogv",
        ".ts",
        ".webm",
        ".wmv",
    ]
)


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


@dataclass(frozen=True)
class ClassFolders:
    """What was found in folders named after classes."""

    folder: Path
    classes: tuple[str, ...]
    """In the order of their numbers."""
    lists: tuple[VideoList, ...]
    """train.csv, val.csv and test.csv."""
    ignored: tuple[str, ...]
    """Paths of the files that lie beside the videos and are none."""
    nested: tuple[str, ...]
    """Paths of the folders that lie beside the videos, and are not looked into."""


def read_lists(csvs: Sequence[Path], *, prefix: str, separator: str) -> list[VideoList]:
    """The lists in some csv files; relative paths are taken from `prefix`, or from the file's own
    folder where that is empty.

    Raises:
        ValueError: a file is missing or does not parse, or two have the same name.
    """
    lists = list[VideoList]()
    for csv in csvs:
        if not csv.is_file():
            raise ValueError(f"--csv {csv}: no such file")
        if csv.name in [other.name for other in lists]:
            raise ValueError(
                f"--csv {csv}: two lists are named {csv.name}; prepare them to folders of their own"
            )
        videos = read_csv(csv, prefix=prefix, separator=separator, num_classes=sys.maxsize)
        root = Path(os.path.abspath(prefix or csv.parent))
        lists.append(VideoList(csv.name, Path(os.path.abspath(csv)), root, videos))
    return lists


def read_ssv2_lists(folder: Path, *, prefix: str) -> tuple[list[VideoList], tuple[str, ...]]:
    """train.csv and val.csv of Something-Something's WebM files, and its classes in their order.

    The files are those that the json files in `folder` name; they are looked for in `prefix`, or in
    and below `folder` where that is empty.

    Raises:
        ValueError: a json file is missing or wrong, with entry; or classes are not numbered from 0.
    """
    folder, lists = Path(os.path.abspath(folder)), list[VideoList]()
    for split in ("train", "val"):
        file = labels_file(folder, split)
        videos = webm_videos(file, prefix, sys.maxsize)
        root = Path(os.path.abspath(os.path.dirname(videos[0].path)))
        lists.append(VideoList(f"{split}.csv", file, root, videos))
    return lists, ssv2_classes(folder) or ()


def find_classes(folder: Path, val_fraction: float | None = None) -> ClassFolders:
    """The videos in `folder`/<class>/ or in `folder`/{train,val,test}/<class>/.

    Classes are numbered in the order of their names. Without the second form, `val_fraction` of
    each class (0.1 if None; at least one video of every class that has two) is set aside for
    validation: always the same videos, and most of them still the same when others are added. A
    missing test split is the validation split, and the other way round.

    Raises:
        ValueError: no such folder, no classes, a class without videos, one that is validated and
            not trained, no train split, or a fraction where the split is given.
    """
    folder = Path(os.path.abspath(folder))
    if not folder.is_dir():
        raise ValueError(f"--folder {folder}: no such folder")
    splits = [name for name in _folders(folder) if name in _SPLITS]
    beside = list[str]()
    if splits and len(splits) == len(_folders(folder)):
        if val_fraction is not None:
            raise ValueError(f"--val-fraction: {folder} is split already ({', '.join(splits)})")
        found = {split: _classes(folder / split, beside) for split in splits}
        found = _complete(folder, found)
    else:
        fraction = _VAL_FRACTION if val_fraction is None else val_fraction
        found = _set_aside(folder, _classes(folder, beside), fraction)
    classes = tuple(sorted(found["train"]))
    lists = tuple(_labelled(folder, split, found[split], classes) for split in _SPLITS)
    nested = tuple(path for path in beside if os.path.isdir(path))
    ignored = tuple(path for path in beside if path not in nested)
    return ClassFolders(folder, classes, lists, ignored, nested)


def write_class_lists(found: ClassFolders, separator: str) -> None:
    """Write the csv files and classes.json into the folder itself.

    Raises:
        ValueError: a file of that name is there already and says something else, or a csv file
            cannot express a path.
    """
    texts = dict[Path, str]()
    for videos in found.lists:
        rows = [(os.path.relpath(path, found.folder), label) for path, label in videos.videos]
        texts[found.folder / videos.name] = format_csv(rows, separator)
    for path, text in texts.items():
        _check_same(path, text)
    write_classes(found.classes, found.folder)
    for path, text in texts.items():
        write_text(path, text)


def write_classes(classes: Sequence[str], folder: Path) -> None:
    """Write classes.json: the number of each class by its name.

    Raises:
        ValueError: there is another one already.
    """
    numbers = {name: number for number, name in enumerate(classes)}
    text = json.dumps(numbers, ensure_ascii=False, indent=2) + "\n"
    _check_same(folder / "classes.json", text)
    write_text(folder / "classes.json", text)


def format_csv(rows: Iterable[tuple[str, int]], separator: str) -> str:
    """The csv file of some paths and labels.

    Raises:
        ValueError: a path that would not be read back as it is.
    """
    lines = list[str]()
    for path, label in rows:
        line = f"{path}{separator}{label}"
        encodable = line.encode(errors="ignore").decode() == line
        if not encodable or len(line.splitlines()) != 1 or line.strip() != line:
            raise ValueError(f"{path!r}: a csv file cannot express this name; rename the file")
        lines.append(line + "\n")
    return "".join(lines)


def write_text(path: Path, text: str) -> None:
    """Write a file; it is whole or as it was, never in between."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _check_same(path: Path, text: str) -> None:
    if path.exists() and path.read_text(encoding="utf-8-sig") != text:
        raise ValueError(f"{path} exists and says something else; move it away first")


def _folders(folder: Path) -> list[str]:
    return sorted(e.name for e in os.scandir(folder) if e.is_dir() and e.name[0] != ".")


def _classes(folder: Path, beside: list[str]) -> dict[str, list[str]]:
    """The videos of each class, by the class's name, in the order of their names."""
    names = _folders(folder)
    if not names:
        raise ValueError(f"{folder}: no folders in it; one for each class is expected")
    found = dict[str, list[str]]()
    for name in names:
        paths = sorted(e.path for e in os.scandir(folder / name) if e.name[0] != ".")
        videos = [p for p in paths if os.path.splitext(p)[1].lower() in _VIDEOS]
        if not videos:
            raise ValueError(
                f"{folder / name}: no videos in it; folders are to be named <class>/ or "
                "{train,val,test}/<class>/, with the videos right in them"
            )
        beside += sorted(set(paths) - set(videos))
        found[name] = videos
    return found


def _complete(
    folder: Path, found: dict[str, dict[str, list[str]]]
) -> dict[str, dict[str, list[str]]]:
    """All three splits from those that are given."""
    evaluated = found.get("val") or found.get("test")
    if "train" not in found or evaluated is None:
        raise ValueError(
            f"{folder} holds {', '.join(found)} alone; add the other split, or give the folder in "
            "which the classes lie, to have videos set aside for validation"
        )
    found = {"val": evaluated, "test": evaluated} | found
    for split in ("val", "test"):
        if unknown := sorted(set(found[split]) - set(found["train"])):
            raise ValueError(f"{folder / split / unknown[0]}: train/ has no class of this name")
    return found


def _set_aside(
    folder: Path, classes: dict[str, list[str]], fraction: float
) -> dict[str, dict[str, list[str]]]:
    """Part a fraction of each class from it, chosen by a hash of the videos' names."""
    if not 0 < fraction < 1:
        raise ValueError(f"--val-fraction is {fraction}: give a number between 0 and 1")
    train, val = dict[str, list[str]](), dict[str, list[str]]()
    for name, paths in classes.items():
        count = min(len(paths) - 1, max(1, round(fraction * len(paths))))
        chosen = set(sorted(paths, key=lambda path: _lot(folder, path))[:count])
        train[name] = [path for path in paths if path not in chosen]
        if chosen:
            val[name] = sorted(chosen)
    if not val:
        raise ValueError(f"{folder}: no class has two videos, so that none can be set aside")
    return {"train": train, "val": val, "test": val}


def _lot(folder: Path, path: str) -> bytes:
    return hashlib.sha256(os.fsencode(os.path.relpath(path, folder))).digest()


def _labelled(
    folder: Path, split: str, found: dict[str, list[str]], classes: Sequence[str]
) -> VideoList:
    numbers = {name: number for number, name in enumerate(classes)}
    videos = [LabelledVideo(p, numbers[name]) for name in sorted(found) for p in found[name]]
    return VideoList(f"{split}.csv", folder, folder, videos)
