"""The Kinetics csv files: one "path label" a line, without a header."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fvcore.common.config import CfgNode

__all__ = ["LabelledVideo", "count_lines", "count_videos", "csv_path", "read_csv"]


class LabelledVideo(NamedTuple):
    """A video file and its class."""

    path: str
    label: int


def csv_path(cfg: CfgNode, split: str) -> Path:
    """Where the list of a split ("train", "val" or "test") lies."""
    return Path(cfg.DATA.PATH_TO_DATA_DIR) / f"{split}.csv"


def count_videos(cfg: CfgNode, split: str) -> int | None:
    """Videos in the list of a split; None where there is no list."""
    path = csv_path(cfg, split)
    return count_lines(path) if path.is_file() else None


def count_lines(path: Path) -> int:
    """Lines of a list that are not blank."""
    with path.open(encoding="utf-8") as lines:
        return sum(1 for line in lines if line.strip())


def read_csv(
    path: Path, *, prefix: str = "", separator: str = " ", num_classes: int
) -> list[LabelledVideo]:
    """The videos of a list.

    A relative path is taken from `prefix`, or from the list's own folder where that is empty. The
    last separator of a line parts path and label, so that paths may contain it.

    Raises:
        ValueError: no such file, an empty one, a line that does not parse, or a label outside
            [0, num_classes); with file and line.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such file; {_advice(path)}")
    folder, videos = Path(prefix) if prefix else path.parent, list[LabelledVideo]()
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), start=1):
        if not line.strip():
            continue
        name, found, label = line.strip().rpartition(separator)
        where = f"{path}, line {number}"
        if not found or not name.strip() or not label.strip().isdecimal():
            raise ValueError(f"{where}: {line!r} is not 'path{separator}label'")
        if int(label) >= num_classes:
            raise ValueError(
                f"{where}: label {int(label)} is outside MODEL.NUM_CLASSES {num_classes} "
                f"(labels run from 0 to {num_classes - 1})"
            )
        videos.append(LabelledVideo(str(folder / name.strip()), int(label)))
    if not videos:
        raise ValueError(f"{path}: no videos in the list")
    return videos


def _advice(path: Path) -> str:
    """What to do about a list that is not there."""
    if path.name == "test.csv" and path.with_name("train.csv").is_file():
        return "add it beside train.csv, or set TEST.ENABLE False to train without a test"
    return "set DATA.PATH_TO_DATA_DIR to the folder that has it"
