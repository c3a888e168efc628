"""The Kinetics csv files: one "path label" a line, without a header."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from slowfast_patches.config.recipe import Recipe

__all__ = [
    "LabelledVideo",
    "csv_path",
    "missing_list",
    "outside",
    "parse_separator",
    "read_csv",
    "read_utf8",
    "what_is_wrong",
]

_SEPARATORS = {" ": "space", "\t": "tab", ",": "comma", ";": "semicolon"}


class LabelledVideo(NamedTuple):
    """A video file and its class."""

    path: str
    label: int


def csv_path(recipe: Recipe, split: str) -> Path:
    """Where the list of a split ("train", "val" or "test") lies."""
    return Path(recipe.data.path_to_data_dir) / f"{split}.csv"


def read_csv(
    path: Path, *, prefix: str = "", separator: str = " ", num_classes: int
) -> list[LabelledVideo]:
    """The videos of a list.

    A relative path is taken from `prefix`, or from the list's own folder where that is empty. The
    last separator of a line parts path and label, so that paths may contain it; the two characters
    \\t are a tab.

    Raises:
        ValueError: no such file, an empty one, one that is not UTF-8, a line that does not parse,
            or a label outside [0, num_classes); with file and line.
    """
    if not path.is_file():
        raise ValueError(missing_list(path))
    separator = parse_separator(separator)
    folder, videos = Path(prefix) if prefix else path.parent, list[LabelledVideo]()
    for number, line in enumerate(read_utf8(path).splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        if wrong := what_is_wrong(line, separator):
            raise ValueError(f"{where}: {wrong}")
        name, _, label = line.strip().rpartition(separator)
        if int(label) >= num_classes:
            raise ValueError(f"{where}: {outside(int(label), num_classes)}")
        videos.append(LabelledVideo(str(folder / name.strip()), int(label)))
    if not videos:
        raise ValueError(f"{path}: no videos in the list")
    return videos


def parse_separator(text: str) -> str:
    """A separator as it can be typed: the two characters \\t are a tab.

    Raises:
        ValueError: it is empty.
    """
    if not text:
        raise ValueError(
            "DATA.PATH_LABEL_SEPARATOR (tools/prepare_data.py: --separator) is empty; give what "
            "parts path and label in the lists, as ' '"
        )
    return text.replace("\\t", "\t")


def what_is_wrong(line: str, separator: str) -> str | None:
    """Why a line is no path and label; None if it is."""
    if _parses(line, separator):
        return None
    wrong = (
        f"{line.strip()!r} is not a path and a label, a whole number from 0, with a "
        f"{_SEPARATORS.get(separator, 'separator')} ({separator!r}) between"
    )
    other = next((other for other in _SEPARATORS if _parses(line, other)), None)
    if other is None:
        return wrong
    typed = other.replace("\t", "\\t")
    return (
        f"{wrong}; if a {_SEPARATORS[other]} parts path and label, set "
        f"DATA.PATH_LABEL_SEPARATOR '{typed}' (tools/prepare_data.py: --separator)"
    )


def _parses(line: str, separator: str) -> bool:
    name, _, label = line.strip().rpartition(separator)
    return bool(name.strip()) and label.strip().isdecimal()


def read_utf8(path: Path) -> str:
    """The text of a file.

    Raises:
        ValueError: it is not UTF-8; with file, line and what to do.
    """
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        likely = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "latin1"
        raise ValueError(
            f"{path}, line {line}: this is not UTF-8 (byte {content[error.start]:#04x}); convert "
            f"the file, as by: iconv -f {likely} -t utf-8 {path.name} > new_{path.name}"
        ) from None


def missing_list(path: Path) -> str:
    """What is said of a list that is not there."""
    if path.name == "test.csv" and path.with_name("train.csv").is_file():
        return f"{path}: no such file; add it, or set TEST.ENABLE False to train without a test"
    return f"{path}: no such file; set DATA.PATH_TO_DATA_DIR to the folder that has it"


def outside(label: int, num_classes: int) -> str:
    """What is said of a label that is too large."""
    last = num_classes - 1
    return f"label {label} is outside MODEL.NUM_CLASSES {num_classes} (labels run from 0 to {last})"
