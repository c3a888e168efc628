"""Csv lists, as Kinetics has them: one "path label" a line, without a header."""

from __future__ import annotations

import codecs
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.reading.ragged import Ragged

__all__ = [
    "CsvList",
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


@dataclass(frozen=True, eq=False)
class CsvList(Sequence[LabelledVideo]):
    """The videos of a list, as a few arrays: it may have millions, and forked processes share
    them."""

    names: Ragged  # encoded as UTF-8
    labels: NDArray[np.int64]
    folder: Path  # what relative names start from

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: Any) -> Any:
        row = range(len(self))[number]
        if isinstance(row, range):  # a slice
            return [self[each] for each in row]
        name = self.names[row].tobytes().decode()
        return LabelledVideo(str(self.folder / name), int(self.labels[row]))


def csv_path(recipe: Recipe, split: str) -> Path:
    """Where the list of a split ("train", "val" or "test") lies."""
    return Path(recipe.data.path_to_data_dir) / f"{split}.csv"


def read_csv(
    path: Path, *, prefix: str = "", separator: str = " ", num_classes: int | None
) -> CsvList:
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
    names = bytearray()
    ends = array("q", [0])
    labels = array("q")
    try:
        with path.open(encoding="utf-8-sig") as file:
            lines = tqdm(file, path.name, unit=" lines", delay=2, leave=False, disable=None)
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    name, label = split_line(line, separator)
                    if num_classes is not None and label >= num_classes:
                        raise ValueError(outside(label, num_classes))
                except ValueError as error:
                    raise ValueError(f"{path}, line {number}: {error}") from None
                names += name.encode()
                ends.append(len(names))
                labels.append(label)
    except UnicodeDecodeError:
        read_utf8(path)  # raises with the line
        raise
    if not labels:
        raise ValueError(f"{path}: no videos in the list")
    rows = Ragged(np.frombuffer(names, np.uint8), np.frombuffer(ends, np.int64))
    return CsvList(rows, np.frombuffer(labels, np.int64), Path(prefix) if prefix else path.parent)


def split_line(line: str, separator: str) -> tuple[str, int]:
    """The path and the label of a line; ValueError if it is not these two."""
    separator = separator.replace("\\t", "\t")
    name, _, label = line.strip().rpartition(separator)
    if not name.strip() or not label.strip().isdecimal():
        raise ValueError(
            f"{line.strip()!r:.200} is not a path and a label, a whole number from 0, with "
            f"{separator!r} between; what is between is DATA.PATH_LABEL_SEPARATOR "
            "(multigrid-prepare: --separator; VideoClips takes pairs, too)"
        )
    return name.strip(), int(label)


def read_utf8(path: Path) -> str:
    """The text of a file; ValueError with file and line where it is not UTF-8."""
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        reason = f"this is {'UTF-16' if is_utf16 else 'not UTF-8'}; convert the file, as by"
        command = f"iconv -f {'utf-16' if is_utf16 else 'latin1'} -t utf-8"
        raise ValueError(f"{path}, line {line}: {reason}: {command}") from None


def missing_list(path: Path) -> str:
    """The message for a missing list."""
    if path.name == "test.csv" and path.with_name("train.csv").is_file():
        return f"{path}: no such file; add it, or set TEST.ENABLE False to train without a test"
    return f"{path}: no such file; set DATA.PATH_TO_DATA_DIR to the folder that has it"


def outside(label: int, num_classes: int) -> str:
    """The message for a label that is too large."""
    last = num_classes - 1
    return f"label {label} is outside MODEL.NUM_CLASSES {num_classes} (labels run from 0 to {last})"
