"""Lists of videos to prepare: from csv files, or from Something-Something's json files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slowfast_patches.datasets.lists.csv_list import LabelledVideo, read_csv, split_line
from slowfast_patches.datasets.lists.ssv2_list import labels_file, ssv2_classes, webm_videos

__all__ = ["VideoList", "format_csv", "read_lists", "read_ssv2_lists"]


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
    lists = list[VideoList]()
    for csv in csvs:
        if not csv.is_file():
            raise ValueError(f"--csv {csv}: no such file")
        if csv.name in [other.name for other in lists]:
            raise ValueError(f"--csv {csv}: two lists are named {csv.name}; prepare them apart")
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


def format_csv(rows: Iterable[tuple[str, int]], separator: str) -> str:
    """The csv file of some paths and labels.

    Raises:
        ValueError: a path that would not be read back as it is.
    """
    lines, between = list[str](), separator.replace("\\t", "\t")
    for path, label in rows:
        line = f"{path}{between}{label}"
        encodable = line.encode(errors="ignore").decode() == line
        if not encodable or line.splitlines() != [line] or split_line(line, between)[0] != path:
            raise ValueError(f"{path!r}: a csv file cannot express this name; rename the file")
        lines.append(line + "\n")
    return "".join(lines)
