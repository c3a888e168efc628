"""Csv lists, as Kinetics has them: one "path label" a line, without a header."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.reading.shared_list import SharedList

__all__ = [
    "LabelledVideo",
    "check_label",
    "check_list",
    "read_csv",
    "read_kinetics",
    "read_utf8",
    "split_line",
]


_SEPARATORS = (",", ";", "\t", " ")
"""What a line is likely to have between path and label."""


class LabelledVideo(NamedTuple):
    """A video file and its class."""

    path: str
    label: int


def read_csv(
    path: Path, *, prefix: str = "", separator: str = " ", num_classes: int = sys.maxsize
) -> SharedList[LabelledVideo]:
    """The videos of a list.

    A relative path is taken from `prefix`, or from the list's own folder where that is empty. The
    last separator of a line parts path and label, so that paths may contain it; the two characters
    \\t are a tab.

    Raises:
        ValueError: no such file, an empty one, one that is not UTF-8, a line that does not parse,
            or a label outside [0, num_classes); with file and line.
    """
    check_list(path)
    folder = Path(prefix) if prefix else path.parent

    def parse(lines: Iterable[str]) -> Iterator[LabelledVideo]:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                name, label = split_line(line, separator)
                check_label(label, num_classes)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
            yield LabelledVideo(str(folder / name), label)

    try:
        with path.open(encoding="utf-8-sig") as file:
            videos = SharedList(parse(file))
    except UnicodeDecodeError:
        read_utf8(path)  # raises with the line
        raise
    if not videos:
        raise ValueError(f"{path}: no videos in the list")
    return videos


def read_kinetics(recipe: Recipe, path: Path, split: str) -> SharedList[LabelledVideo]:
    """The videos of a list as a recipe says. Raises as `read_csv`."""
    return read_csv(
        path,
        prefix=recipe.data.path_prefix,
        separator=recipe.data.path_label_separator,
        num_classes=recipe.model.num_classes,
    )


def split_line(line: str, separator: str) -> tuple[str, int]:
    """The path and the label of a line; ValueError if it is not these two."""
    separator = separator.replace("\\t", "\t")
    line = line.strip()
    if found := _parted(line, separator):
        return found
    name, _, label = line.rpartition(separator)
    if other := next((mark for mark in _SEPARATORS if _parted(line, mark)), ""):
        wrong = f"its separator is {other!r}, not {separator!r}"
    elif name.strip():
        wrong = f"the label after the last {separator!r}, {label!r:.60}, is no class number from 0"
    else:
        wrong = f"the separator {separator!r} is not between a path and a label"
    raise ValueError(
        f"{line!r:.200} is not a path and a label: {wrong}. DATA.PATH_LABEL_SEPARATOR names the "
        "separator (multigrid-prepare: --separator; VideoClips takes pairs, too)"
    )


def _parted(line: str, separator: str) -> tuple[str, int] | None:
    """The path and the class number that a separator parts, if it does."""
    name, _, label = (part.strip() for part in line.rpartition(separator))
    return (name, int(label)) if name and label.isdecimal() else None


def read_utf8(path: Path) -> str:
    """The text of a file; ValueError with file and line where it is not UTF-8."""
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        encoding = "utf-16" if is_utf16 else "latin1"
        raise ValueError(
            f"{path}, line {line}: not UTF-8; convert the file, as by iconv -f {encoding} -t utf-8"
        ) from None


def check_list(path: Path) -> None:
    """ValueError for a missing list."""
    if path.is_file():
        return
    if path.name == "test.csv" and path.with_name("train.csv").is_file():
        advice = "add it, or set TEST.ENABLE False to train without a test"
    else:
        advice = "set DATA.PATH_TO_DATA_DIR to the folder that has it"
    raise ValueError(f"{path}: no such file; {advice}")


def check_label(label: int, num_classes: int) -> None:
    """ValueError for a label outside [0, num_classes)."""
    if not 0 <= label < num_classes:
        raise ValueError(
            f"label {label} is outside MODEL.NUM_CLASSES {num_classes}: labels run from 0 to "
            f"{num_classes - 1}"
        )
