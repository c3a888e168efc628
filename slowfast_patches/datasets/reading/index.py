"""Index of a list of videos: the `VideoRecord` of each video, scanned once and saved in a file.

The index file lies beside the list, or else in the user's cache folder. An entry is valid while the
size and modification time of its video stay the same. Videos that are new, changed or previously
unreadable are scanned again, unless a video killed the process that scanned it. The file is
compressed JSON. A damaged file, or one of another version, is rebuilt.
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

from slowfast_patches.datasets.reading.containers import frame_files
from slowfast_patches.datasets.reading.limits import LIMITS, ReadingLimits
from slowfast_patches.datasets.reading.scan import KILLER, scan_each
from slowfast_patches.datasets.reading.shared_list import SharedList
from slowfast_patches.datasets.reading.video_record import Kind, UnreadableVideoError, VideoRecord
from slowfast_patches.utils.distributed import broadcast_from_main
from slowfast_patches.utils.files import atomic_write
from slowfast_patches.utils.signals import stop_if_asked
from slowfast_patches.utils.tables import shorten_list

logger = logging.getLogger(__name__)

_VERSION = 4
"""Increase this when the file format changes, or when `scan` returns other results."""
_SAVE_SECONDS = 60.0
"""Interval between saves. Scanning a list may take hours, and the process may be killed."""
_STOPPED = "while videos were scanned; repeat the command to continue"
_THREADS = 32
"""Threads that query sizes and times. On a network disk, this is mostly waiting."""


class Entry(NamedTuple):
    """Index entry of one video."""

    size: int  # bytes of a file, or number of JPEG files in a folder; -1 if missing
    modified: int  # ns
    record: str  # `VideoRecord.packed()`; empty if the video is unreadable
    reason: str  # why the video is unreadable; empty if it has a record
    damage: str = ""  # `VideoRecord.damage`

    @property
    def is_final(self) -> bool:
        """Whether the video is scanned again only after it has changed."""
        return self.reason in ("", KILLER)


class VideoIndex:
    """Records of the videos of a list, by their number in the list."""

    def __init__(self, entries: Sequence[Entry], paths: Sequence[str]) -> None:
        self._entries = SharedList((entry.record, entry.reason) for entry in entries)
        self.unreadable = [(p, e.reason) for p, e in zip(paths, entries, strict=True) if e.reason]
        """(path, reason) of each video that has no record."""
        self.damaged = [(p, e.damage) for p, e in zip(paths, entries, strict=True) if e.damage]
        """(path, damage) of each video that can be read only in part."""

    def __len__(self) -> int:
        return len(self._entries)

    def record(self, number: int) -> VideoRecord:
        """Return the record of a video.

        Raises:
            UnreadableVideoError: The video could not be scanned.
        """
        record, reason = self._entries[number]
        if reason:
            raise UnreadableVideoError(reason)
        return VideoRecord.unpacked(record)

    @property
    def is_prepared(self) -> bool:
        """Whether the first readable video is in the prepared form."""
        readable = (n for n, (_, reason) in enumerate(self._entries) if not reason)
        first = next(readable, None)
        return first is not None and self.record(first).kind == Kind.PREPARED


def open_index(
    csv: Path, paths: Sequence[str], *, workers: int | None = None, limits: ReadingLimits = LIMITS
) -> VideoIndex:
    """Load the index of a list of videos, scan the missing videos, and save it.

    In a distributed run, every process must call this function. The first process does the work and
    sends the result to the others, which wait as long as it takes. Unreadable videos and videos
    beyond the limits are not errors. A warning gives their number and names the first ones, and a
    file beside the index lists them all.

    Args:
        csv: The list. It determines where the index is saved.
        paths: The videos in the order of the list: video files, prepared files or folders of JPEG
            files.
        workers: Processes that scan. By default one per core.
        limits: Limits on what is read.
    """
    return broadcast_from_main(lambda: _open(csv, paths, workers, limits))


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
    logger.info("index of %s: opened in %.1f s", csv, time.monotonic() - began)
    index = VideoIndex([known[name] for name in names], paths)
    _report(csv, index)
    return index


def _entry(status: tuple[int, int], record: VideoRecord | str) -> Entry:
    if isinstance(record, str):
        return Entry(*status, "", record)
    return Entry(*status, record.packed(), "", record.damage)


def index_files(csv: Path, suffix: str = ".json.gz") -> list[Path]:
    """Return the possible places of an index: beside the list and in the user's cache folder."""
    absolute = Path(os.path.abspath(csv))
    digest = hashlib.sha256(os.fsencode(absolute)).hexdigest()[:16]
    beside = absolute.with_name(f"{csv.stem}.index{suffix}")
    return [beside, _cache_folder() / f"{digest}.index{suffix}"]


def unlisted(paths: Sequence[str]) -> Path:
    """Return a stand-in for the list file when videos are given without one.

    The path lies in the user's cache folder and is always the same for the same videos. Pass it to
    `open_index`.
    """
    names = b"\0".join(os.fsencode(os.path.abspath(path)) for path in paths)
    return _cache_folder() / f"videos-{hashlib.sha256(names).hexdigest()[:16]}"


def _cache_folder() -> Path:
    """Return the folder for cached indexes. Users without a home get the temporary folder."""
    home = os.path.expanduser("~")
    cache = os.path.join(home, ".cache") if os.path.isdir(home) else tempfile.gettempdir()
    return Path(os.environ.get("XDG_CACHE_HOME") or cache) / "multigrid"


def _save(csv: Path, entries: Mapping[str, Entry]) -> None:
    """Write the index file.

    If no video can be read, the disk is probably not mounted. Then keep the earlier index.
    """
    if any(entry.is_final for entry in entries.values()):
        content = json.dumps({"version": _VERSION, "videos": entries}).encode()
        if file := _write(csv, ".json.gz", gzip.compress(content, 1)):
            logger.info("the index of %s is in %s", csv, file)
        else:
            logger.warning(
                "the index of %s cannot be saved anywhere; the next run will scan the videos again",
                csv,
            )


def _write(csv: Path, suffix: str, content: bytes) -> Path | None:
    """Write a file beside the list, or else in the cache folder.

    Returns:
        The path written, or None if neither folder is writable.
    """
    for file in index_files(csv, suffix):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(file, shared=True) as stream:
                stream.write(content)
        except OSError as error:
            logger.info("%s cannot be written: %s", file, error)
        else:
            return file
    return None


def _load(csv: Path) -> Iterator[dict[str, Entry]]:
    """Yield the entries in each existing index file. The one beside the list comes last."""
    for file in reversed(index_files(csv)):
        try:
            if file.is_file():
                yield load_index(file)
        except ValueError as error:
            logger.warning("the index %s is rebuilt: %s", file, error)


def load_index(file: Path) -> dict[str, Entry]:
    """Read an index file.

    Returns:
        The entry of each video by its name.

    Raises:
        ValueError: The file is not an index, is damaged (by its checksum), or has another version.
    """
    try:
        content = json.loads(gzip.decompress(file.read_bytes()))
        if content["version"] != _VERSION:
            raise ValueError(f"it is not of version {_VERSION}")
        return {name: Entry(*entry) for name, entry in content["videos"].items()}
    except Exception as error:  # errors of zlib, json and bad fields have no common base
        raise ValueError(f"it cannot be used ({type(error).__name__}: {error})") from error


def _report(csv: Path, index: VideoIndex) -> None:
    """Log the unreadable videos, and write all of them to a file beside the index."""
    for file in index_files(csv, ".unreadable.txt"):
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
    if bad := [f"{path}\t{' '.join(reason.split())}" for path, reason in index.unreadable]:
        content = "".join(f"{line}\n" for line in bad).encode("utf-8", "backslashreplace")
        logger.warning(
            "%d of the %d videos of %s cannot be read: %s; all of them are listed in %s",
            *(len(bad), len(index), csv, shorten_list(bad)),
            _write(csv, ".unreadable.txt", content) or "no file, as none can be written",
        )
    if index.damaged:
        logger.warning(
            "%d of the %d videos of %s can be read only in part: %s",
            *(len(index.damaged), len(index), csv),
            shorten_list([f"{path} {damage}" for path, damage in index.damaged]),
        )


def _names(csv: Path, paths: Sequence[str]) -> list[str]:
    """Return the names of the videos in the index.

    A name is the absolute path, or the path relative to the list's folder for videos in it. So the
    data set can be moved.
    """
    here = os.getcwd()
    folder = os.path.join(os.path.abspath(csv.parent), "")
    return [os.path.join(here, path).removeprefix(folder) for path in paths]


def _status(path: str) -> tuple[int, int]:
    """Return the size and modification time of a video, as stored in `Entry`."""
    try:
        status = os.stat(path)
        size = len(frame_files(path)) if stat.S_ISDIR(status.st_mode) else status.st_size
    except (OSError, ValueError):  # ValueError: the path is not a valid file name
        return -1, -1
    return size, status.st_mtime_ns
