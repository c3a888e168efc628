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
    "read_csv",
    "read_utf8",
    "split_line",
]


class LabelledVideo(NamedTuple):
    """A video file and its class."""

    path: str
    label: int


def csv_path(recipe: Recipe, split: str) -> Path:
    """Where the list of a split ("train", "val" or "test") lies."""
    return Path(recipe.data.path_to_data_dir) / f"{split}.csv"


def read_csv(
    path: Path, *, prefix: str = "", separator: str = " ", num_classes: int | None
) -> list[LabelledVideo]:
    """The videos of a list.

    A relative path is taken from `prefix`, or from the list's own folder where that is empty. The
    last separator of a line parts path and label, so that paths may contain it; the two characters
    \\t are a tab.

    Raises:
        ValueError: no such file, an empty one, one that is not UTF-8, a line that does not parse,
            or a label outside [0, num_classes), if there is such a number; with file and line.
    """
    if not path.is_file():
        raise ValueError(missing_list(path))
    folder, videos = Path(prefix) if prefix else path.parent, list[LabelledVideo]()
    for number, line in enumerate(read_utf8(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            name, label = split_line(line, separator)
            if num_classes is not None and label >= num_classes:
                raise ValueError(outside(label, num_classes))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
        videos.append(LabelledVideo(str(folder / name), label))
    if not videos:
        raise ValueError(f"{path}: no videos in the list")
    return videos


def split_line(line: str, separator: str) -> tuple[str, int]:
    """The path and the label of a line; ValueError if it is not these two."""
    separator = separator.replace("\\t", "\t")
    name, _, label = line.strip().rpartition(separator)
    if not name.strip() or not label.strip().isdecimal():
        raise ValueError(
            f"{line.strip()!r:.200} is not a path and a label, a whole number from 0, with "
            f"{separator!r} between; what is between is DATA.PATH_LABEL_SEPARATOR "
            "(tools/prepare_data.py: --separator; VideoClips takes pairs, too)"
        )
    return name.strip(), int(label)


def read_utf8(path: Path) -> str:
    """The text of a file; ValueError with file and line where it is not UTF-8."""
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        said = "this is not UTF-8; convert the file, as by: iconv -f latin1 -t utf-8"
        raise ValueError(f"{path}, line {line}: {said}") from None


def missing_list(path: Path) -> str:
    """What is said of a list that is not there."""
    if path.name == "test.csv" and path.with_name("train.csv").is_file():
        return f"{path}: no such file; add it, or set TEST.ENABLE False to train without a test"
    return f"{path}: no such file; set DATA.PATH_TO_DATA_DIR to the folder that has it"


def outside(label: int, num_classes: int) -> str:
    """What is said of a label that is too large."""
    last = num_classes - 1
    return f"label {label} is outside MODEL.NUM_CLASSES {num_classes} (labels run from 0 to {last})"
