"""The index of a list of videos: the record of each, scanned once and kept in a file.

It lies in a file beside the list, or in the user's cache folder. What it says of a video holds as
long as the video's size and time of modification do; what is new, has changed, or could not be read
is scanned, unless it killed the process that tried. The file is an npz of plain arrays; a damaged
one, or one of another version, is built anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from slowfast_patches.datasets.reading.files import MAX_PIXELS, frame_files
from slowfast_patches.datasets.reading.ragged import Ragged
from slowfast_patches.datasets.reading.scan import KILLER, scan_each
from slowfast_patches.datasets.reading.video_record import Kind, UnreadableVideoError, VideoRecord
from slowfast_patches.utils.distributed import from_main
from slowfast_patches.utils.files import written_whole
from slowfast_patches.utils.tables import first_few

__all__ = ["VideoIndex", "index_files", "load_index", "open_index", "unlisted"]

logger = logging.getLogger(__name__)

_VERSION = 2
"""To be raised when the arrays change, or what `scan` finds in the same file."""
_UNREADABLE = -1
"""Kind of a video without a record."""
_SAVE_SECONDS = 60.0
"""How often what is found is saved: a list may take hours, and any process may be killed."""
_THREADS = 32
_CHUNK = 256
"""Of asking for sizes and times, which on a network disk is all waiting."""


class Entry(NamedTuple):
    """What the index file says of a video."""

    size: int  # bytes of a file, or JPEG files in a folder; -1 where there is no such thing
    modified: int  # ns
    kind: int
    content: bytes  # the packed record, or the reason why there is none

    @property
    def is_final(self) -> bool:
        """Whether the video is not scanned again before it changes."""
        return self.kind != _UNREADABLE or self.content == KILLER.encode()


class VideoIndex:
    """What is known of the videos of a list, by their number in it.

    There is no Python object a video: processes that are forked share it all.
    """

    def __init__(self, entries: Sequence[Entry], paths: Sequence[str]) -> None:
        self._kinds = np.array([entry.kind for entry in entries], np.int8)
        self._contents = Ragged.of_bytes(entry.content for entry in entries)
        bad = np.flatnonzero(self._kinds == _UNREADABLE).tolist()
        self.unreadable = [(paths[n], entries[n].content.decode(errors="replace")) for n in bad]
        """(path, reason) of each video that has no record."""

    def __len__(self) -> int:
        return len(self._kinds)

    def record(self, number: int) -> VideoRecord:
        """The record of a video; UnreadableVideoError if it could not be scanned."""
        content = self._contents[number].tobytes()
        if self._kinds[number] == _UNREADABLE:
            raise UnreadableVideoError(content.decode(errors="replace"))
        return VideoRecord.unpacked(content)

    @property
    def is_prepared(self) -> bool:
        """Whether all videos that can be read are in the prepared form."""
        kinds = self._kinds[self._kinds != _UNREADABLE]
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
    began = time.monotonic()
    names = _names(csv, paths)
    path_of = dict(zip(names, paths, strict=True))
    status = dict(zip(path_of, _status(list(path_of.values())), strict=True))
    files = _load_all(csv)
    known = dict[str, Entry]()
    for entries in files.values():
        known |= {n: e for n, e in entries.items() if e.is_final and e[:2] == status.get(n)}
    left = {path: name for name, path in path_of.items() if name not in known}
    logger.info("index of %s: %d videos to scan", csv, len(left))
    each = scan_each(list(left), workers=workers, max_pixels=max_pixels)
    bar = tqdm(desc=f"index of {csv.name}", total=len(left), unit="video", disable=None)
    saved = began
    try:
        with contextlib.closing(each), bar:
            for path, record in each:
                known[left[path]] = _entry(status[left[path]], record)
                bar.update()
                if time.monotonic() - saved > _SAVE_SECONDS:
                    _save(csv, known)
                    saved = time.monotonic()
    except BaseException:
        _save(csv, known)
        raise
    file = next((file for file, entries in files.items() if entries == known), None)
    file = file or _save(csv, known)
    logger.info(
        "index of %s: %d videos, found in %.1f s; it is in %s",
        *(csv, len(known), time.monotonic() - began, file or "no file"),
    )
    index = VideoIndex([known[name] for name in names], paths)
    _report(csv, index, file or index_files(csv)[0])
    return index


def _entry(status: tuple[int, int], record: VideoRecord | str) -> Entry:
    if isinstance(record, str):
        return Entry(*status, _UNREADABLE, record.encode("utf-8", "backslashreplace"))
    return Entry(*status, int(record.kind), record.packed())


def index_files(csv: Path) -> list[Path]:
    """Where the index of a list may lie: beside it, or in the user's cache folder."""
    absolute = Path(os.path.abspath(csv))
    cache = _cache_folder()
    beside = absolute.with_name(f"{csv.stem}.index.npz")
    digest = hashlib.sha256(os.fsencode(absolute)).hexdigest()[:16]
    return [beside] if cache is None else [beside, cache / f"{digest}.index.npz"]


def unlisted(paths: Sequence[str]) -> Path:
    """What `open_index` takes for the list of videos that no file lists: a name in the user's cache
    folder, the same for the same paths."""
    names = b"\0".join(os.fsencode(os.path.abspath(path)) for path in paths)
    folder = _cache_folder() or Path(tempfile.gettempdir())
    return folder / f"videos-{hashlib.sha256(names).hexdigest()[:16]}"


def _cache_folder() -> Path | None:
    """Where a user's indices may lie; None for a user without a home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "multigrid"
    except RuntimeError:
        return None


def _save(csv: Path, entries: dict[str, Entry]) -> Path | None:
    """Write the index file beside the list, or else in the cache folder; where it is now.

    One of videos of which none can be read says only that their disk is missing: an earlier one
    is worth more.
    """
    if not any(entry.is_final for entry in entries.values()):
        return None
    for file in index_files(csv):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            _write(file, entries)
        except OSError as error:
            logger.info("the index cannot be kept in %s: %s", file, error)
        else:
            return file
    logger.warning("the index of %s can be kept nowhere: it is lost", csv)
    return None


def _write(file: Path, entries: dict[str, Entry]) -> None:
    names = Ragged.of_bytes(os.fsencode(name) for name in entries)
    contents = Ragged.of_bytes(entry.content for entry in entries.values())
    with written_whole(file, shared=True) as stream:
        np.savez_compressed(
            stream,
            version=np.array(_VERSION),
            names=names.values,
            name_ends=names.ends,
            status=np.array([entry[:3] for entry in entries.values()], np.int64),
            contents=contents.values,
            content_ends=contents.ends,
        )


def _load_all(csv: Path) -> dict[Path, dict[str, Entry]]:
    """What the files of a list say, the one beside it last."""
    loaded = dict[Path, dict[str, Entry]]()
    for file in reversed(index_files(csv)):
        try:
            if file.is_file():
                loaded[file] = load_index(file)
        except ValueError as error:
            logger.warning("the index %s is built anew: it %s", file, error)
    return loaded


def load_index(file: Path) -> dict[str, Entry]:
    """What an index file says of each video, by its name; ValueError if it is none, damaged (the
    zip's checksums tell), or of another version."""
    try:
        with np.load(file, allow_pickle=False) as arrays:
            if int(arrays.get("version", 0)) != _VERSION:
                raise ValueError(f"it is not of version {_VERSION}")
            names = Ragged(arrays["names"], arrays["name_ends"]).to_bytes()
            contents = Ragged(arrays["contents"], arrays["content_ends"]).to_bytes()
            rows = zip(*arrays["status"].T.tolist(), contents, strict=True)
        entries = [Entry(*row) for row in rows]
        return dict(zip(map(os.fsdecode, names), entries, strict=True))
    except Exception as error:  # what zip, numpy and a damaged header raise has no common base
        raise ValueError(f"cannot be used: {type(error).__name__}: {error}") from error


def _report(csv: Path, index: VideoIndex, file: Path) -> None:
    """Say which videos cannot be read: all in a file beside the index, the first in the log."""
    listing = file.with_name(file.name.removesuffix(".npz") + ".unreadable.txt")
    lines = [f"{path}\t{' '.join(reason.split())}" for path, reason in index.unreadable]
    where = f"all of them are listed in {listing}"
    try:
        listing.unlink(missing_ok=True)
        if lines:
            with written_whole(listing, shared=True) as stream:
                stream.write("".join(f"{n}\n" for n in lines).encode("utf-8", "backslashreplace"))
    except OSError as error:  # the index has no place either
        where = f"a list of them cannot be written: {error}"
    if lines:
        logger.warning(
            "%d of the %d videos of %s cannot be read: %s; %s",
            *(len(lines), len(index), csv, first_few(lines).replace("\t", ": "), where),
        )


def _names(csv: Path, paths: Sequence[str]) -> list[str]:
    """What the index calls the videos: their absolute paths, but from the list's folder on if they
    are in it, so that a data set may be moved."""
    here = os.getcwd()
    folder = os.path.join(os.path.abspath(csv.parent), "")
    absolute = (os.path.join(here, path) for path in paths)
    cut = ((path, path.removeprefix(folder)) for path in absolute)
    return [path if name.startswith(os.sep) else name for path, name in cut]


def _status(paths: Sequence[str]) -> Iterable[tuple[int, int]]:
    """Size and time of each, as an entry has them."""
    chunks = (paths[start : start + _CHUNK] for start in range(0, len(paths), _CHUNK))
    with ThreadPoolExecutor(_THREADS) as threads:
        statuses = threads.map(lambda chunk: [_status_of(path) for path in chunk], chunks)
        return chain.from_iterable(statuses)


def _status_of(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
        size = len(frame_files(path)) if stat.S_ISDIR(status.st_mode) else status.st_size
    except (OSError, ValueError):  # ValueError: no file can be called so
        return -1, -1
    return size, status.st_mtime_ns
