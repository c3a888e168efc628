"""Read csv lists in the format of Kinetics: a line "path label" per video, without a header."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.reading.shared_list import SharedList

_SEPARATORS = (",", ";", "\t", " ")
"""Common separators. An error message suggests one of them if a line cannot be parsed."""


class LabelledVideo(NamedTuple):
    """Video file with a class index."""

    path: str
    label: int

    @property
    def annotation(self) -> str:
        """The label as text. `list_digest` hashes it."""
        return str(self.label)

    def classes(self, first: int = 0, last: int | None = None) -> set[int]:
        """Return the labels of the frames from `first` to `last`: always the label of the video."""
        return {self.label}


def read_csv(
    path: Path, *, prefix: str = "", separator: str = " ", num_classes: int = sys.maxsize
) -> SharedList[LabelledVideo]:
    r"""Read the videos of a list.

    The last separator of a line divides path and label, so paths may contain the separator.

    Args:
        path: The list.
        prefix: Folder to which the paths in the list are relative. By default the folder of the
            list.
        separator: The separator between path and label. The two characters `\t` stand for a tab.
        num_classes: Number of classes. Labels must be smaller.

    Raises:
        ValueError: The file is missing, empty or not UTF-8, or a line cannot be parsed or has an
            invalid label.
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
        read_utf8(path)  # raises a ValueError that names the line
        raise
    if not videos:
        raise ValueError(f"the list {path} contains no videos")
    return videos


def read_kinetics(recipe: Recipe, path: Path, split: str) -> SharedList[LabelledVideo]:
    """Read the videos of a list. Prefix, separator and number of classes come from the recipe.

    Raises:
        ValueError: As for `read_csv`.
    """
    return read_csv(
        path,
        prefix=recipe.data.path_prefix,
        separator=recipe.data.path_label_separator,
        num_classes=recipe.model.num_classes,
    )


def split_line(line: str, separator: str) -> tuple[str, int]:
    """Split a line into path and label.

    Raises:
        ValueError: The line is not a path and a class index with this separator between them.
    """
    separator = separator.replace("\\t", "\t")
    line = line.strip()
    if found := _try_split(line, separator):
        return found
    name, _, label = line.rpartition(separator)
    if other := next((mark for mark in _SEPARATORS if _try_split(line, mark)), ""):
        wrong = f"the separator is {other!r}, not {separator!r}"
    elif name.strip():
        wrong = f"the label after the last {separator!r}, {label!r:.60}, is not a class index"
    else:
        wrong = f"the separator {separator!r} is not between a path and a label"
    raise ValueError(
        f"{line!r:.200} is not a path and a label: {wrong}. Set the separator with the key "
        "DATA.PATH_LABEL_SEPARATOR, or with --separator of multigrid-prepare"
    )


def _try_split(line: str, separator: str) -> tuple[str, int] | None:
    """Split a line at the last separator. Return None if it is not a path and a class index."""
    name, _, label = (part.strip() for part in line.rpartition(separator))
    return (name, int(label)) if name and label.isdecimal() else None


def read_utf8(path: Path) -> str:
    """Read a UTF-8 text file.

    Raises:
        ValueError: The file is not UTF-8. The message names the line.
    """
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        encoding = "utf-16" if is_utf16 else "latin1"
        raise ValueError(
            f"{path}, line {line}: the text is not UTF-8. Convert the file, for example with "
            f"iconv -f {encoding} -t utf-8"
        ) from None


def check_list(path: Path) -> None:
    """Check that a list exists.

    Raises:
        ValueError: The list is missing.
    """
    if path.is_file():
        return
    if path.name == "test.csv" and path.with_name("train.csv").is_file():
        advice = "Add the file, or set TEST.ENABLE False to train without a test"
    else:
        advice = "Set DATA.PATH_TO_DATA_DIR to the folder that contains the list"
    raise ValueError(f"the list {path} does not exist. {advice}")


def check_label(label: int, num_classes: int) -> None:
    """Check that a label is in [0, num_classes).

    Raises:
        ValueError: The label is outside this range.
    """
    if not 0 <= label < num_classes:
        raise ValueError(
            f"the label is {label}, but must be from 0 to {num_classes - 1}, because "
            f"MODEL.NUM_CLASSES is {num_classes}"
        )
