"""The index of a list of videos: what the reader has to know of each, found once and kept.

It lies in a file beside the csv, or in the user's cache folder. What it says of a video holds as
long as the video's size and time of modification do; what is new, has changed, or could not be read
is scanned.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from slowfast_patches.datasets.reading.files import MAX_PIXELS, frame_files
from slowfast_patches.datasets.reading.index_file import (
    BadIndexError,
    checksum,
    index_files,
    load_table,
    replace_file,
    save_table,
)
from slowfast_patches.datasets.reading.index_table import Entry, Table
from slowfast_patches.datasets.reading.scan_all import FEW, KILLER, scan_all
from slowfast_patches.datasets.reading.video_record import Kind, VideoRecord
from slowfast_patches.utils.distributed import from_main

__all__ = ["VideoIndex", "open_index"]

logger = logging.getLogger(__name__)

Ints = NDArray[np.int64]

_SAVE_EVERY = 30.0
"""Seconds of scanning after which what was found is saved; more where saving itself takes long."""
_SAVING_SHARE = 0.05
_SHOWN = 3
"""Unreadable videos that the log names."""
_THREADS, _CHUNK = 32, 256
"""Of asking for sizes and times, which on a network disk is all waiting."""


class VideoIndex:
    """What is known of the videos of a list, by their number in it."""

    def __init__(self, table: Table, rows: Ints, paths: Sequence[str]) -> None:
        """`rows` (videos,) says which row of the table each video has; several may share one."""
        self._table, self._rows = table, rows
        bad = np.flatnonzero(~table.is_readable[rows]).tolist()
        self._unreadable = [(paths[n], table.reason(rows[n])) for n in bad]

    def __len__(self) -> int:
        return len(self._rows)

    def record(self, number: int) -> VideoRecord:
        """The record of a video.

        Raises:
            UnreadableVideoError: it could not be scanned; says why.
        """
        return self._table.record(self._rows[number])

    @property
    def unreadable(self) -> list[tuple[str, str]]:
        """(path, reason) of each video that has no record."""
        return list(self._unreadable)

    @property
    def is_prepared(self) -> bool:
        """Whether all videos that can be read are in the prepared form."""
        kinds = self._table.rows["kind"][self._rows][self._table.is_readable[self._rows]]
        return len(kinds) > 0 and bool((kinds == Kind.PREPARED).all())


def open_index(
    csv: Path, paths: Sequence[str], *, workers: int | None = None, max_pixels: int = MAX_PIXELS
) -> VideoIndex:
    """The index of the videos of a list, in its order: files, prepared files, folders of JPEGs.

    It is loaded, completed by `workers` processes (default: one a core) where it lacks something,
    and saved. In a run of several processes all must call this; the first does the work and the
    others get what it found, however long that takes. A video that cannot be read, or whose frames
    have more than `max_pixels`, is no error: they are counted and the first are named in a warning,
    and all are listed in a file beside the index.
    """
    return from_main(lambda: _open(csv, paths, workers, max_pixels))


def _open(csv: Path, paths: Sequence[str], workers: int | None, max_pixels: int) -> VideoIndex:
    names, files = _names(csv, paths), dict[str, str]()
    for name, path in zip(names, paths, strict=True):
        files.setdefault(name, path)
    table = _Building(csv, files, max_pixels).build(workers)
    row = {name: number for number, name in enumerate(files)}
    return VideoIndex(table, np.array([row[name] for name in names], np.int64), paths)


class _Building:
    """An index that is being completed: `files` are paths by the name the index knows them by."""

    def __init__(self, csv: Path, files: dict[str, str], max_pixels: int) -> None:
        self.max_pixels = max_pixels
        self.csv, self.names, self.paths = csv, list(files), list(files.values())
        self.began = time.monotonic()
        self.status = _status(self.paths)
        self.kept, self.kept_numbers = Table.of([], self.status[:0], []), list[int]()
        self.scanned = dict[int, Entry]()
        self.files = dict[int, Path]()
        """The files that hold an index already, by its checksum."""
        self.has_killers, self.save_at = False, self.began + _SAVE_EVERY

    def build(self, workers: int | None) -> Table:
        """The whole table, which is also saved if anything is new in it."""
        left = self._look_up()
        self._scan(left, workers)
        table = self._table()
        file = self.files.get(checksum(table)) or self._save(table)
        if file is None and table.is_readable.any():
            logger.warning("the index of %s can be kept nowhere: it is lost", self.csv)
        logger.info(
            "index of %s: %d videos, %d of them scanned, in %.1f s; it is in %s",
            *(self.csv, len(table), len(left), time.monotonic() - self.began, file or "no file"),
        )
        self._report(table, file or index_files(self.csv)[0])
        return table

    def _look_up(self) -> list[int]:
        """Take what the files know that still holds; the numbers of the other videos."""
        left = np.arange(len(self.names))
        for file in index_files(self.csv):
            if not len(left) or not os.path.isfile(file):
                continue
            try:
                table = load_table(file)
            except BadIndexError as error:
                logger.warning("the index %s is built anew: it %s", file, error)
                continue
            self.files[checksum(table)] = file
            bad = np.flatnonzero(~table.is_readable).tolist()
            self.has_killers |= KILLER in map(table.reason, bad)
            left = self._keep(table, left)
        return left.tolist()

    def _keep(self, table: Table, left: Ints) -> Ints:
        """Keep the rows of a table that hold for videos that are left; those that remain."""
        row = {path: number for number, path in enumerate(table.paths.texts())}
        rows = np.array([row.get(self.names[number], -1) for number in left.tolist()])
        holds = rows >= 0
        found, (size, modified) = table.rows[rows[holds]], self.status[left[holds]].T
        holds[holds] = (found["size"] == size) & (found["modified"] == modified) & (size >= 0)
        holds[holds] = table.is_readable[rows[holds]]
        self.kept = self.kept.joined(table.take(rows[holds]))
        self.kept_numbers += left[holds].tolist()
        return left[~holds]

    def _scan(self, left: list[int], workers: int | None) -> None:
        """Scan the videos that are left; what is found until an interruption is saved."""
        terminal = sys.stderr.isatty()
        with tqdm(
            total=len(left),
            desc=f"index of {self.csv.name}",
            unit="video",
            mininterval=0.2 if terminal else 30.0,
            disable=not left or not (terminal or len(left) > FEW),
        ) as bar:

            def found(number: int, entry: Entry) -> None:
                self.scanned[left[number]] = entry
                bar.update()
                if time.monotonic() >= self.save_at:
                    self._save_in_between()

            paths = [self.paths[number] for number in left]
            try:
                scan_all(
                    paths,
                    found,
                    workers=workers,
                    guarded=self.has_killers,
                    max_pixels=self.max_pixels,
                )
            except BaseException:
                self._save(self._table())
                raise

    def _table(self) -> Table:
        """What is known by now, in the order of the list."""
        numbers = np.array(list(self.scanned), np.int64)
        names = [self.names[number] for number in self.scanned]
        scanned = Table.of(names, self.status[numbers], list(self.scanned.values()))
        order = np.argsort(np.concatenate([np.array(self.kept_numbers, np.int64), numbers]))
        return self.kept.joined(scanned).take(order)

    def _save_in_between(self) -> None:
        began = time.monotonic()
        self._save(self._table())
        now = time.monotonic()
        self.save_at = now + max(_SAVE_EVERY, (now - began) / _SAVING_SHARE)

    def _save(self, table: Table) -> Path | None:
        """Save a table beside the csv, or else in the cache folder; where it is now.

        One of videos of which none can be read says only that their disk is missing: an earlier one
        is worth more.
        """
        if not table.is_readable.any():
            return None
        for file in index_files(self.csv):
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                save_table(table, file)
            except OSError as error:
                logger.info("the index cannot be kept in %s: %s", file, error)
            else:
                return file
        return None

    def _report(self, table: Table, file: Path) -> None:
        """Say which videos cannot be read: all in a file beside the index, the first in the log."""
        listing = file.with_name(file.name.removesuffix(".npz") + ".unreadable.txt")
        bad = np.flatnonzero(~table.is_readable).tolist()
        lines = [f"{self.paths[n]}\t{' '.join(table.reason(n).split())}" for n in bad]
        try:
            if not bad:
                listing.unlink(missing_ok=True)
                return
            text = "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")
            replace_file(listing, lambda temporary: temporary.write_bytes(text))
            where = f"all of them are listed in {listing}"
        except OSError as error:
            where = f"a list of them cannot be written: {error}"
        first = "; ".join(line.replace("\t", ": ") for line in lines[:_SHOWN])
        more = ", ..." if len(bad) > _SHOWN else ""
        logger.warning(
            "%d of the %d videos of %s cannot be read: %s%s; %s",
            *(len(bad), len(table), self.csv, first, more, where),
        )


def _names(csv: Path, paths: Sequence[str]) -> list[str]:
    """What the index calls the videos: their absolute paths, but from the csv's folder on if they
    are in it, so that a data set may be moved."""
    here, folder = os.getcwd(), os.path.join(os.path.abspath(csv.parent), "")
    names = list[str]()
    for path in paths:
        absolute = os.path.join(here, path)
        name = absolute.removeprefix(folder)
        names.append(absolute if name.startswith(os.sep) else name)
    return names


def _status(paths: Sequence[str]) -> Ints:
    """(paths, 2): bytes of a file or JPEG files in a folder, and time of modification in ns."""
    chunks = [paths[start : start + _CHUNK] for start in range(0, len(paths), _CHUNK)]
    with ThreadPoolExecutor(_THREADS) as threads:
        found = threads.map(lambda chunk: [_status_of(path) for path in chunk], chunks)
        return np.array(list(chain.from_iterable(found)), np.int64).reshape(-1, 2)


def _status_of(path: str) -> tuple[int, int]:
    """-1 if there is no such thing."""
    try:
        status = os.stat(path)
        size = len(frame_files(path)) if stat.S_ISDIR(status.st_mode) else status.st_size
    except (OSError, ValueError):  # ValueError: no file can be called so
        return -1, -1
    return size, status.st_mtime_ns
