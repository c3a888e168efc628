"""The index of a list of videos: the record of each, scanned once and kept in a file.

It lies in a file beside the list, or in the user's cache folder. What it says of a video holds as
long as the video's size and time of modification do; what is new, has changed, or could not be read
is scanned, unless it killed the process that tried. The file is compressed JSON; a damaged one, or
one of another version, is built anew.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import logging
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from slowfast_patches.datasets.reading.files import frame_files
from slowfast_patches.datasets.reading.limits import LIMITS, ReadingLimits
from slowfast_patches.datasets.reading.scan import KILLER, scan_each
from slowfast_patches.datasets.reading.shared_list import SharedList
from slowfast_patches.datasets.reading.video_record import Kind, UnreadableVideoError, VideoRecord
from slowfast_patches.utils.distributed import from_main
from slowfast_patches.utils.files import written_whole
from slowfast_patches.utils.signals import stop_if_asked
from slowfast_patches.utils.tables import first_few

__all__ = ["VideoIndex", "index_files", "load_index", "open_index", "unlisted"]

logger = logging.getLogger(__name__)

_VERSION = 4
"""To be raised when the file's form changes, or what `scan` finds in the same video."""
_SAVE_SECONDS = 60.0
"""How often what is found is saved: a list may take hours, and any process may be killed."""
_STOPPED = "while videos were scanned; the same command goes on from what was found"
_THREADS = 32
"""Of asking for sizes and times, which on a network disk is all waiting."""


class Entry(NamedTuple):
    """What the index says of a video."""

    size: int  # bytes of a file, or JPEG files in a folder; -1 where there is no such thing
    modified: int  # ns
    record: str  # packed; empty where there is none
    reason: str  # why there is no record
    damage: str = ""  # `VideoRecord.damage`

    @property
    def is_final(self) -> bool:
        """Whether the video is not scanned again before it changes."""
        return self.reason in ("", KILLER)


class VideoIndex:
    """What is known of the videos of a list, by their number in it."""

    def __init__(self, entries: Sequence[Entry], paths: Sequence[str]) -> None:
        self._entries = SharedList((entry.record, entry.reason) for entry in entries)
        self.unreadable = [(p, e.reason) for p, e in zip(paths, entries, strict=True) if e.reason]
        """(path, reason) of each video that has no record."""
        self.damaged = [(p, e.damage) for p, e in zip(paths, entries, strict=True) if e.damage]
        """(path, damage) of each video that can be read in part."""

    def __len__(self) -> int:
        return len(self._entries)

    def record(self, number: int) -> VideoRecord:
        """The record of a video; UnreadableVideoError if it could not be scanned."""
        record, reason = self._entries[number]
        if reason:
            raise UnreadableVideoError(reason)
        return VideoRecord.unpacked(record)

    @property
    def is_prepared(self) -> bool:
        """Whether the first video that can be read is in the prepared form."""
        readable = (n for n, (_, reason) in enumerate(self._entries) if not reason)
        first = next(readable, None)
        return first is not None and self.record(first).kind == Kind.PREPARED


def open_index(
    csv: Path, paths: Sequence[str], *, workers: int | None = None, limits: ReadingLimits = LIMITS
) -> VideoIndex:
    """The index of the videos of a list, in its order: files, prepared files, folders of JPEGs.

    It is loaded, completed by `workers` processes (default: one a core) where it lacks something,
    and saved. In a run of several processes all must call this; the first does the work and the
    others get what it found, however long that takes. A video that cannot be read, or
    that is beyond the limits, is no error: they are counted and the first are named in a warning,
    and all are listed in a file beside the index.
    """
    return from_main(lambda: _open(csv, paths, workers, limits))


def _open(
    csv: Path, paths: Sequence[str], workers: int | None, limits: ReadingLimits
) -> VideoIndex:
    began = time.monotonic()
    names = _names(csv, paths)
    path_of = dict(zip(names, paths, strict=True))
    with ThreadPoolExecutor(_THREADS) as threads:
        parts = threads.map(
            lambda first: {n: _status(path_of[n]) for n in names[first::_THREADS]}, range(_THREADS)
        )
        status = {name: state for part in parts for name, state in part.items()}
    known = dict[str, Entry]()
    for entries in _load(csv):
        known |= {n: e for n, e in entries.items() if e.is_final and e[:2] == status.get(n)}
    left = {path: name for name, path in path_of.items() if name not in known}
    logger.info("index of %s: %d videos to scan", csv, len(left))
    each = scan_each(list(left), workers=workers, limits=limits)
    bar = tqdm(each, f"index of {csv.name}", len(left), unit="video", disable=None)
    saved = began
    try:
        with contextlib.closing(each):
            for path, record in bar:
                known[left[path]] = _entry(status[left[path]], record)
                stop_if_asked(_STOPPED)
                if time.monotonic() - saved > _SAVE_SECONDS:
                    _save(csv, known)
                    saved = time.monotonic()
    finally:
        if left:
            _save(csv, known)
    logger.info("index of %s: open after %.1f s", csv, time.monotonic() - began)
    index = VideoIndex([known[name] for name in names], paths)
    _report(csv, index)
    return index


def _entry(status: tuple[int, int], record: VideoRecord | str) -> Entry:
    if isinstance(record, str):
        return Entry(*status, "", record)
    return Entry(*status, record.packed(), "", record.damage)


def index_files(csv: Path, suffix: str = ".json.gz") -> list[Path]:
    """Where the index of a list may lie: beside it, or in the user's cache folder."""
    absolute = Path(os.path.abspath(csv))
    digest = hashlib.sha256(os.fsencode(absolute)).hexdigest()[:16]
    beside = absolute.with_name(f"{csv.stem}.index{suffix}")
    return [beside, _cache_folder() / f"{digest}.index{suffix}"]


def unlisted(paths: Sequence[str]) -> Path:
    """What `open_index` takes for the list of videos that no file lists: a name in the user's cache
    folder, the same for the same paths."""
    names = b"\0".join(os.fsencode(os.path.abspath(path)) for path in paths)
    return _cache_folder() / f"videos-{hashlib.sha256(names).hexdigest()[:16]}"


def _cache_folder() -> Path:
    """Where a user's indices may lie; for a user without a home, with temporary files."""
    home = os.path.expanduser("~")
    cache = os.path.join(home, ".cache") if os.path.isdir(home) else tempfile.gettempdir()
    return Path(os.environ.get("XDG_CACHE_HOME") or cache) / "multigrid"


def _save(csv: Path, entries: Mapping[str, Entry]) -> None:
    """Write the index file.

    One of videos of which none can be read says only that their disk is missing: an earlier one
    is worth more.
    """
    if any(entry.is_final for entry in entries.values()):
        content = json.dumps({"version": _VERSION, "videos": entries}).encode()
        if file := _write(csv, ".json.gz", gzip.compress(content, 1)):
            logger.info("the index of %s is in %s", csv, file)
        else:
            logger.warning("the index of %s can be written nowhere: it is lost", csv)


def _write(csv: Path, suffix: str, content: bytes) -> Path | None:
    """Write a file beside a list, or else in the cache folder; None where neither can be."""
    for file in index_files(csv, suffix):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with written_whole(file, shared=True) as stream:
                stream.write(content)
        except OSError as error:
            logger.info("%s cannot be written: %s", file, error)
        else:
            return file
    return None


def _load(csv: Path) -> Iterator[dict[str, Entry]]:
    """What each file of a list says, the one beside it last."""
    for file in reversed(index_files(csv)):
        try:
            if file.is_file():
                yield load_index(file)
        except ValueError as error:
            logger.warning("the index %s is built anew: %s", file, error)


def load_index(file: Path) -> dict[str, Entry]:
    """What an index file says of each video, by its name; ValueError if it is none, damaged (by
    its checksum), or of another version."""
    try:
        content = json.loads(gzip.decompress(file.read_bytes()))
        if content["version"] != _VERSION:
            raise ValueError(f"it is not of version {_VERSION}")
        return {name: Entry(*entry) for name, entry in content["videos"].items()}
    except Exception as error:  # what zlib, json and damaged fields raise has no common base
        raise ValueError(f"cannot be used: {type(error).__name__}: {error}") from error


def _report(csv: Path, index: VideoIndex) -> None:
    """Log which videos cannot be read; list all of them in a file where the index lies."""
    for file in index_files(csv, ".unreadable.txt"):
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
    if bad := [f"{path}\t{' '.join(reason.split())}" for path, reason in index.unreadable]:
        content = "".join(f"{line}\n" for line in bad).encode("utf-8", "backslashreplace")
        logger.warning(
            "%d of the %d videos of %s cannot be read: %s; all of them are listed in %s",
            *(len(bad), len(index), csv, first_few(bad)),
            _write(csv, ".unreadable.txt", content) or "no file, as none can be written",
        )
    if index.damaged:
        logger.warning(
            "%d of the %d videos of %s can be read in part: %s",
            *(len(index.damaged), len(index), csv),
            first_few([f"{path} {damage}" for path, damage in index.damaged]),
        )


def _names(csv: Path, paths: Sequence[str]) -> list[str]:
    """What the index calls the videos: their absolute paths, but from the list's folder on if they
    are in it, so that a data set may be moved."""
    here = os.getcwd()
    folder = os.path.join(os.path.abspath(csv.parent), "")
    return [os.path.join(here, path).removeprefix(folder) for path in paths]


def _status(path: str) -> tuple[int, int]:
    """Size and time of modification, as an entry has them."""
    try:
        status = os.stat(path)
        size = len(frame_files(path)) if stat.S_ISDIR(status.st_mode) else status.st_size
    except (OSError, ValueError):  # ValueError: no file can be called so
        return -1, -1
    return size, status.st_mtime_ns
