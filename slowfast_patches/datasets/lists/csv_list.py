"""Read csv lists in the format of Kinetics: a line "path label" per video, without a header."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.reading.formats import is_video_name
from slowfast_patches.datasets.reading.scanned_video import SharedList
from slowfast_patches.utils.errors import UserError, mistake_in
from slowfast_patches.utils.storage import as_path, is_remote, join

SPACES = " \t\r\n\v\f"
"""The ASCII white space. Other spaces, such as the no-break space, may be part of a path."""
_SEPARATORS = (",", ";", "\t", " ", "\xa0")
"""Separators that occur. An error message suggests one of them if a line cannot be parsed."""
_LINE_ENDS = re.compile("\r\n|\n|\r")
_DIGITS = 10
"""No class index has this many digits."""
_UNSET = "(DATA.PATH_TO_DATA_DIR is not set)"
_ODD = {
    r"^[~$]": "starts with ~ or $, which is not replaced. Write the whole path",
    r"\\|^\w:/": "is not a path on this machine. Write the path on this machine, with / instead "
    "of \\",
    r"://": "is an address that cannot be read. Write the path of the downloaded file, or an "
    "address such as s3://bucket/video.mp4",
    r"\.(zip|tar|tgz|gz|7z|rar)\b": "is in an archive. Unpack the archive, and write the path of "
    "the video file",
}
"""What to write instead of a path that matches a pattern, unless a file has this unusual name."""


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

    The last separator of a line divides path and label, so paths may contain the separator. A path
    or label may be in quotes, which are removed in pairs.

    Args:
        path: The list.
        prefix: Folder to which the paths in the list are relative. By default the folder of the
            list.
        separator: The separator between path and label. The two characters `\t` stand for a tab.
        num_classes: Number of classes. Labels must be smaller.

    Raises:
        ValueError: The file is missing, empty or not UTF-8, the separator cannot separate columns,
            or a line cannot be parsed, has an invalid label, or names something other than a file.
    """
    check_separator(separator)
    check_list(path)
    separator = separator.replace("\\t", "\t")
    folder = as_path(prefix) if prefix else path.parent
    places = dict[int, str]()

    def parse(lines: Iterable[str]) -> Iterator[LabelledVideo]:
        for number, line in enumerate(lines, start=1):
            if not line.strip(SPACES):
                continue
            try:
                name, label = split_line(line, separator)
                _check_path(name, folder)
            except UserError as error:
                raise UserError(f"{path}, line {number}: {error}") from None
            if label not in places:
                places[label] = f"line {number}"
            yield LabelledVideo(join(folder, name), label)

    videos = SharedList(parse(split_lines(read_utf8(path))))
    if not videos:
        raise UserError(f"the list {path} contains no videos")
    check_labels(path, places, num_classes)
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
    line = line.strip(SPACES)
    if found := _try_split(line, separator):
        return found
    reason = "the last column must be a class index from 0, without a header or more columns"
    if other := next((mark for mark in _SEPARATORS if _try_split(line, mark)), ""):
        reason = f"the separator is {other!r}"
    raise UserError(
        f"{line!r:.200} is not a path and a label with {separator!r} between them: {reason}. "
        "Correct the line, or set the separator with the key DATA.PATH_LABEL_SEPARATOR, or with "
        "--separator of multigrid-prepare"
    )


def _try_split(line: str, separator: str) -> tuple[str, int] | None:
    """Split a line at the last separator. Return None if it is not a path and a class index."""
    name, _, label = (_unquote(part.strip(SPACES)) for part in line.rpartition(separator))
    is_class = label.isdecimal() and len(label) < _DIGITS
    return (name, int(label)) if name and is_class else None


def _unquote(text: str) -> str:
    """Remove a pair of quotes around a text. Quotes that are part of the text stay."""
    quote, inner = text[:1], text[1:-1]
    is_quoted = len(text) > 2 and quote in ("'", '"') and text[-1] == quote and quote not in inner
    return inner if is_quoted else text


def check_separator(separator: str) -> None:
    """Check that a separator can separate a path from a label.

    Raises:
        ValueError: The separator is empty, or contains a letter, a digit or the end of a line.
    """
    marks = separator.replace("\\t", "\t")
    if not marks or re.search(r"[^\W_]|[\r\n]", marks):
        raise UserError(
            f"the separator {separator!r} cannot separate a path from a label. Set the key "
            "DATA.PATH_LABEL_SEPARATOR, or --separator of multigrid-prepare, to a character such "
            "as ',' or \\t"
        )


def split_lines(text: str) -> list[str]:
    """Split a text into lines, which may end as on Linux, Windows or old versions of macOS.

    Other characters that `str.splitlines` takes for line ends may be part of a path.
    """
    return _LINE_ENDS.split(text)


def _check_path(name: str, folder: Path) -> None:
    """Check that a path in a list may be the path of a file or folder.

    Only unusual paths are looked up in the file system, because lists may be long.

    Args:
        name: The path as written in the list.
        folder: The folder to which the path is relative.

    Raises:
        ValueError: The path is an address, lies in an archive or on another machine, or includes a
            column of the list.
    """
    if is_remote(name):
        return
    reason = next((text for pattern, text in _ODD.items() if re.search(pattern, name, re.I)), "")
    if not is_video_name(name) and (columns := re.split(r"[,;\t ]+", name))[1:]:
        if any(map(is_video_name, columns)):
            reason = (
                "is not the path of a video: there are more than two columns, or too many "
                "separators. Remove all columns except path and label"
            )
        elif columns[-1].isdecimal() and _is_folder(join(folder, columns[0])):
            reason = (
                "is a folder and a number. If the columns are folder, number of frames and label, "
                "remove the number of frames"
            )
    if reason and not _exists(join(folder, name)):
        raise UserError(f"{name!r:.200} {reason}")


def _exists(path: str) -> bool:
    return as_path(path).exists() if is_remote(path) else os.path.exists(path)


def _is_folder(path: str) -> bool:
    return as_path(path).is_dir() if is_remote(path) else os.path.isdir(path)


def data_folder(recipe: Recipe) -> Path:
    """Return the folder DATA.PATH_TO_DATA_DIR.

    If the key is not set, return a path that does not exist, not the current folder.
    """
    return as_path(recipe.data.path_to_data_dir or _UNSET)


def read_utf8(path: Path) -> str:
    """Read a UTF-8 text file.

    Raises:
        ValueError: The file is not UTF-8. The message names the line.
    """
    with mistake_in(f"{path} cannot be read"):
        content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}, line {line}: the text is not UTF-8. Convert the file with the command iconv"
        ) from None


def check_list(path: Path) -> None:
    """Check that a list exists.

    Raises:
        ValueError: The list is missing.
    """
    with mistake_in(f"the list {path} cannot be read"):
        is_file = path.is_file()
    if not is_file:
        advice = ". If there is no test list, set TEST.ENABLE False" if path.stem == "test" else ""
        raise UserError(
            f"the list {path} does not exist. Set DATA.PATH_TO_DATA_DIR to the folder that "
            f"contains it{advice}"
        )


def check_labels(path: Path, places: Mapping[int, str], num_classes: int) -> None:
    """Check that all labels of a list are in [0, num_classes).

    Args:
        path: The list.
        places: Maps each label to the place in the list where it first occurs, such as "line 3".
        num_classes: Number of classes.

    Raises:
        ValueError: A label is outside this range. The message says if the labels start at 1.
    """
    smallest, largest = min(places, default=0), max(places, default=0)
    if 0 <= smallest <= largest < num_classes:
        return
    label = smallest if smallest < 0 else largest
    advice = f"Correct the label, or set MODEL.NUM_CLASSES {largest + 1}"
    if smallest == 1:
        advice = (
            "No label in the list is 0. If its labels start at 1, subtract 1 from each label of "
            f"all lists, and set MODEL.NUM_CLASSES {largest}"
        )
    raise UserError(
        f"{path}, {places[label]}: the label is {label}, but must be from 0 to {num_classes - 1}, "
        f"because MODEL.NUM_CLASSES is {num_classes}. {advice}"
    )
