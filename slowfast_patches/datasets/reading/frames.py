"""Find the frames of a video that is stored as JPEG files in a folder.

The frames are a series: their names differ only in their numbers. A folder with several series, for
example pictures and optical flow, is not read. To choose one of them, write the series in place of
the folder, with * for the numbers: `v/img_*.jpg`.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from slowfast_patches.datasets.reading.video_file import UnreadableVideoError
from slowfast_patches.utils.storage import as_path, is_remote, list_files
from slowfast_patches.utils.tables import shorten_list

_NUMBER = re.compile("([0-9]+)")
_JPEG = (".jpg", ".jpeg")
_PICTURES = (
    *(*_JPEG, ".jfif", ".jpe", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm"),
    *(".heic", ".heif", ".avif", ".jp2", ".jxl", ".exr"),
)
"""Suffixes of picture files. Other files in a folder are ignored."""
_ANY = "*"
"""Stands for a number in the name of a series."""

_Names = dict[str, list[str]]
"""Maps the name of each series to the names of its files, in the order of their numbers."""


def is_frames(path: str) -> bool:
    """Return whether a path is a folder, or a series of pictures such as `v/img_*.jpg`."""
    if as_path(path).is_dir():
        return True
    folder, name = os.path.split(path)
    return _ANY in name and not as_path(path).exists() and as_path(folder or ".").is_dir()


def frame_files(path: str) -> list[str]:
    """Return the paths of the frames of a folder or of a series, in natural order: 1, 2, 10.

    Hidden files are left out. macOS writes a hidden file `._a.jpg` beside each file `a.jpg`.

    Raises:
        UnreadableVideoError: The folder contains several series of pictures or none, or the only
            series does not consist of JPEG files.
        OSError: The folder cannot be listed.
    """
    folder, pattern = path, ""
    if not as_path(path).is_dir():
        folder, pattern = os.path.split(path)
    listed = list_files(folder) if is_remote(folder) else os.listdir(folder or ".")
    names = (name for name in listed if name[0] != "." and name.lower().endswith(_PICTURES))
    if pattern:
        wanted = re.compile("[0-9]+".join(map(re.escape, pattern.split(_ANY))))
        names = (name for name in names if wanted.fullmatch(name))
    series = _split(names)
    if len(series) > 1:
        raise _several(folder, series)
    files = next(iter(series.values()), [])
    if not files or not files[0].lower().endswith(_JPEG):
        other = f", but {next(iter(series))}" if series else ""
        what = f"names no JPEG files in {folder}" if pattern else "contains no JPEG files"
        raise UnreadableVideoError(f"{what}{other}")
    join = posixpath.join if is_remote(folder) else os.path.join
    return [join(folder, name) for name in files]


def _several(folder: str, series: _Names) -> UnreadableVideoError:
    rows = sorted(series.items(), key=lambda row: -len(row[1]))
    names = [f"{name} ({len(files)} file{'s' * (len(files) > 1)})" for name, files in rows]
    example = next((n for n, files in rows if len(files) > 1 and n.lower().endswith(_JPEG)), "")
    advice = "Rename the frames so that their names differ only in a number"
    if example:
        advice = (
            f"Write one of them in place of the folder, such as {os.path.join(folder, example)}, "
            "or move the other pictures to another folder"
        )
    return UnreadableVideoError(
        f"contains {len(series)} series of pictures: {shorten_list(names)}. {advice}"
    )


def _split(names: Iterable[str]) -> _Names:
    """Split file names into series. The names of a series differ only in their numbers."""
    alike = defaultdict[tuple[str, ...], list[tuple[str, ...]]](list)
    for name in names:
        parts = _NUMBER.split(name)  # every other part is a number
        alike[tuple(parts[::2])].append(tuple(parts[1::2]))
    series: _Names = {}
    for texts, numbers in sorted(alike.items()):
        for kind, rows in _split_alike(numbers).items():
            series[_join(texts, kind)] = [_join(texts, row) for row in rows]
    return series


def _split_alike(
    rows: Sequence[tuple[str, ...]],
) -> dict[tuple[str, ...], Sequence[tuple[str, ...]]]:
    """Split names with the same text between their numbers into series.

    If several numbers differ, they must all count the files in the same order, as in `1_t40.jpg`,
    `2_t80.jpg`. Otherwise, the number with the most values counts the files of a series, and each
    combination of the other numbers is a series, as in `cam1_0.jpg`, `cam2_0.jpg`.

    Args:
        rows: The numbers in each name, as they are written.

    Returns:
        Maps the numbers that all names of a series share, with * for the others, to the rows of the
        series in the order of their numbers.
    """
    ordered = sorted(rows, key=lambda row: [*map(int, row)])
    columns = [list(map(int, column)) for column in zip(*ordered, strict=True)]
    counts = [len(set(column)) for column in columns]
    counters = [place for place, count in enumerate(counts) if count > 1]
    count_alike = (
        counts[place] == len(rows) and columns[place] == sorted(columns[place])
        for place in counters
    )
    if len(set(zip(*columns, strict=True))) < len(rows) or not counters:
        return {row: [row] for row in ordered}  # 1.jpg and 01.jpg, or a single name
    if not all(count_alike):
        counters = [max(counters, key=lambda place: (counts[place], place))]
    series = defaultdict[tuple[str, ...], list[tuple[str, ...]]](list)
    for row in ordered:
        kind = tuple(_ANY if place in counters else part for place, part in enumerate(row))
        series[kind].append(row)
    return dict(series)


def _join(texts: Sequence[str], numbers: Sequence[str]) -> str:
    """Join texts, and the numbers between them, to the name of a file or of a series."""
    return "".join(part for pair in zip(texts, (*numbers, ""), strict=True) for part in pair)
