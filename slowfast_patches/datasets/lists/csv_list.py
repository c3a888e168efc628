"""Read csv lists in the form of Kinetics: one "path label" per line, without a header."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.reading.shared_list import SharedList

_SEPARATORS = (",", ";", "\t", " ")
"""Common separators, suggested if a line does not parse."""


class LabelledVideo(NamedTuple):
    """Video file and its class."""

    path: str
    label: int

    @property
    def annotation(self) -> str:
        """Text of the label, for the digest of a list."""
        return str(self.label)

    def classes(self, first: int = 0, last: int | None = None) -> set[int]:
        """Return the label, which all frames have."""
        return {self.label}


def read_csv(
    path: Path, *, prefix: str = "", separator: str = " ", num_classes: int = sys.maxsize
) -> SharedList[LabelledVideo]:
    r"""Read the videos of a list.

    The last separator of a line divides path and label, so paths may contain the separator.

    Args:
        path: The list.
        prefix: The folder of relative paths. By default the folder of the list.
        separator: The separator between path and label. The two characters `\t` stand for a tab.
        num_classes: Labels must be below this number.

    Raises:
        ValueError: The file is missing, empty or not UTF-8, or a line does not parse or has an
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
        read_utf8(path)  # raises an error that names the line
        raise
    if not videos:
        raise ValueError(f"{path}: no videos in the list")
    return videos


def read_kinetics(recipe: Recipe, path: Path, split: str) -> SharedList[LabelledVideo]:
    """Read the videos of a list with the keys of a recipe.

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
    """Split a line into its path and label.

    Raises:
        ValueError: The line is not a path and a class number with this separator between them.
    """
    separator = separator.replace("\\t", "\t")
    line = line.strip()
    if found := _try_split(line, separator):
        return found
    name, _, label = line.rpartition(separator)
    if other := next((mark for mark in _SEPARATORS if _try_split(line, mark)), ""):
        wrong = f"its separator is {other!r}, not {separator!r}"
    elif name.strip():
        wrong = f"the label after the last {separator!r}, {label!r:.60}, is not a class number"
    else:
        wrong = f"the separator {separator!r} is not between a path and a label"
    raise ValueError(
        f"{line!r:.200} is not a path and a label: {wrong}. DATA.PATH_LABEL_SEPARATOR names the "
        "separator (multigrid-prepare: --separator; VideoClips also accepts pairs)"
    )


def _try_split(line: str, separator: str) -> tuple[str, int] | None:
    """Split a line at the last separator, or return None if it is not a path and a class number."""
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
            f"{path}, line {line}: not UTF-8; convert the file, for example with "
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
        advice = "add it, or set TEST.ENABLE False to train without a test"
    else:
        advice = "set DATA.PATH_TO_DATA_DIR to the folder that has it"
    raise ValueError(f"{path}: no such file; {advice}")


def check_label(label: int, num_classes: int) -> None:
    """Check that a label is in [0, num_classes).

    Raises:
        ValueError: The label is outside this range.
    """
    if not 0 <= label < num_classes:
        raise ValueError(
            f"label {label} is outside MODEL.NUM_CLASSES {num_classes}: labels run from 0 to "
            f"{num_classes - 1}"
        )
