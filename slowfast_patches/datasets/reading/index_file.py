"""The file an index is kept in, and where it lies.

A compressed npz of the arrays of a table, with a version and a checksum. No pickle is in it, and
nothing of it is believed before all of it has been checked.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from slowfast_patches.datasets.reading.index_table import (
    COUNTED,
    LINE,
    LISTED,
    ROW,
    UNREADABLE,
    Lists,
    Table,
)
from slowfast_patches.datasets.reading.video_record import Kind

__all__ = ["BadIndexError", "checksum", "index_files", "load_table", "replace_file", "save_table"]

Arrays = dict[str, NDArray[Any]]

_VERSION = 1
"""To be raised when the arrays change, or what `scan` finds in the same file."""
_ABOUT = "multigrid_index"
"""The array that says that this is an index: (version, checksum)."""
_LISTS = ("paths", "reasons", "places", "stamps", "headers")
_DTYPES = {"paths": ("u1",), "reasons": ("u1",), "headers": ("u1",)}
_INTEGERS = ("i4", "i8")


class BadIndexError(ValueError):
    """A file that is no index, or one that is damaged or of another version; says which."""


def index_files(csv: Path) -> list[Path]:
    """Where the index of a csv may lie: beside it, or in the user's cache folder."""
    name, absolute = f"{csv.stem}.index.npz", os.path.abspath(csv)
    places = [Path(absolute).with_name(name)]
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home
        return places
    digest = hashlib.sha256(os.fsencode(absolute)).hexdigest()[:16]
    return [*places, cache / "multigrid" / f"{digest}.index.npz"]


def save_table(table: Table, file: Path) -> None:
    """Write a table; the file is there whole or as it was. Raises OSError where that fails."""
    arrays = _to_arrays(table)
    about = {_ABOUT: np.array([_VERSION, _crc(arrays)], np.int64)}

    def write(temporary: Path) -> None:
        with temporary.open("xb") as stream:
            np.savez_compressed(stream, **about, **arrays)  # type: ignore[arg-type]

    replace_file(file, write)


def load_table(file: Path) -> Table:
    """Read a table.

    Raises:
        BadIndexError: the file is not what `save_table` wrote.
    """
    try:
        return _to_table(_load_arrays(file))
    except BadIndexError:
        raise
    except Exception as error:  # what zip, numpy and a damaged header raise has no common base
        raise BadIndexError(f"cannot be read: {type(error).__name__}: {error}") from error


def checksum(table: Table) -> int:
    """Differs where two tables do."""
    return _crc(_to_arrays(table))


def replace_file(file: Path, write: Callable[[Path], object]) -> None:
    """Have `write(path)` write a file under a name of its own, then give it the name it shall have.

    Whoever reads it, or writes it at the same time, meets one whole version or another.
    """
    temporary = file.with_name(f".{file.name}.{uuid4().hex}.tmp")
    try:
        write(temporary)
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def _to_arrays(table: Table) -> Arrays:
    """Column by column, which compresses better than row by row."""
    arrays = {name: np.ascontiguousarray(table.rows[name]) for name in ROW.names or ()}
    headers = Lists.of((np.frombuffer(h, np.uint8) for h in table.headers), np.uint8)
    lists = (table.paths, table.reasons, table.places, table.stamps, headers)
    for name, part in zip(_LISTS, lists, strict=True):
        arrays[name] = part.values
        arrays[f"{name}_counts"] = np.diff(part.ends).astype(np.int32)
    return arrays


def _crc(arrays: Arrays) -> int:
    crc = 0
    for name, array in sorted(arrays.items()):
        crc = zlib.crc32(f"{name} {array.dtype.str} {array.shape}".encode(), crc)
        crc = zlib.crc32(array.data, crc)
    return crc


def _load_arrays(file: Path) -> Arrays:
    """The arrays of a file whose version and checksum are right."""
    with file.open("rb") as stream:
        content = np.load(stream, allow_pickle=False)
        if not isinstance(content, np.lib.npyio.NpzFile) or _ABOUT not in content:
            raise BadIndexError("is something else")
        about = content[_ABOUT]
        if about.shape != (2,) or about.dtype != np.int64:
            raise BadIndexError("is something else")
        version, crc = about.tolist()
        if version != _VERSION:
            raise BadIndexError(f"is of version {version}, this is version {_VERSION}")
        arrays = {name: content[name] for name in content if name != _ABOUT}
    if _crc(arrays) != crc:
        raise BadIndexError("is damaged: its checksum is wrong")
    return arrays


def _to_table(arrays: Arrays) -> Table:
    """The table of some arrays; raises BadIndexError if they make none."""
    count = len(arrays["kind"])
    rows = np.zeros(count, ROW)
    for name in ROW.names or ():
        _check(arrays[name].dtype == ROW[name] and arrays[name].shape == (count,), name)
        rows[name] = arrays[name]
    *lists, distinct = (_to_lists(name, arrays) for name in _LISTS)
    _check(all(len(part.ends) == count + 1 for part in lists), "lists")
    headers = tuple(distinct.at(number).tobytes() for number in range(len(distinct.ends) - 1))
    paths, reasons, places, stamps = lists
    table = Table(rows, paths, reasons, places, stamps, headers)
    _check_rows(table)
    return table


def _to_lists(name: str, arrays: Arrays) -> Lists:
    values, counts = arrays[name], arrays[f"{name}_counts"]
    _check(values.ndim == 1 and values.dtype.str[1:] in _DTYPES.get(name, _INTEGERS), name)
    _check(counts.ndim == 1 and counts.dtype == np.int32 and bool((counts >= 0).all()), name)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    _check(int(ends[-1]) == len(values), name)
    return Lists(values, ends)


def _check_rows(table: Table) -> None:
    """What `Table.record` relies on, and what its records promise."""
    rows, places, stamps = table.rows, np.diff(table.places.ends), np.diff(table.stamps.ends)
    kind, readable = rows["kind"], table.is_readable
    _check(bool(np.isin(kind, [UNREADABLE, *Kind]).all()), "kind")
    _check(bool(np.isin(rows["clock"], [COUNTED, LINE, LISTED]).all()), "clock")
    _check(bool((rows["turns"] < 4).all()), "turns")
    _check(bool((rows["streams"] >= 0).all()), "streams")
    for side in ("frames", "width", "height"):
        _check(bool((rows[side][readable] > 0).all()), side)
    fps = rows["fps"][readable]
    _check(bool((np.isfinite(fps) & (fps > 0)).all()), "fps")
    _check(table.headers[:1] == (b"",), "headers")
    _check(bool(((rows["header"] >= 0) & (rows["header"] < len(table.headers))).all()), "header")
    is_video, is_prepared = kind == Kind.VIDEO, kind == Kind.PREPARED
    _check(bool((places == 0)[~is_video & ~is_prepared].all()), "places")
    _check(bool((places > 0)[is_video].all() and (places > 1)[is_prepared].all()), "places")
    listed = np.where(rows["clock"] == LISTED, rows["frames"], 0)
    _check(np.array_equal(stamps, listed), "stamps")
    _check_places(table, is_video)


def _check_places(table: Table, is_video: NDArray[np.bool_]) -> None:
    """Places ascend; the key frames of a video begin with frame 0 and are among its frames."""
    values, ends = table.places
    totals = np.concatenate([np.zeros(1, np.int64), np.cumsum(values, dtype=np.int64)])
    last = totals[ends[1:]] - totals[ends[:-1]]
    _check(bool((values >= 0).all()), "places")
    _check(bool((last < table.rows["frames"])[is_video].all()), "places")
    _check(not values[ends[:-1][is_video]].any(), "places")
    table.paths.texts(), table.reasons.texts()  # raise UnicodeDecodeError


def _check(holds: bool, name: str) -> None:
    if not holds:
        raise BadIndexError(f"holds what makes no sense: {name}")
