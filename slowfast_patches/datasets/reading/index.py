"""Index of a list of videos: a file with the properties of each video, which is scanned once.

The index file is compressed JSON. It lies beside the list, or in the user's cache folder if the
folder of the list is remote or not writable. An index file that is damaged or has another version
is rebuilt.

An entry is valid as long as the size and modification time of the video stay the same. Opening an
index scans all videos that are new, changed or were unreadable before. Unchanged videos that
crashed the scanning process are not scanned again.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import json
import logging
import os
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, filterfalse
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from slowfast_patches.datasets.reading.file_status import video_status
from slowfast_patches.datasets.reading.scan import KILLER, scan_each
from slowfast_patches.datasets.reading.scanned_video import ScannedVideo, ScannedVideos
from slowfast_patches.utils.distributed import broadcast_from_main
from slowfast_patches.utils.errors import UserError
from slowfast_patches.utils.files import atomic_write
from slowfast_patches.utils.signals import stop_if_asked
from slowfast_patches.utils.storage import absolute, is_remote, upload
from slowfast_patches.utils.tables import shorten_list

logger = logging.getLogger(__name__)

_VERSION = 8
"""Version of the index file. Increase it when the file format or the results of `scan` change."""
_SAVE_SECONDS = 60.0
"""Seconds between saves of the index during a scan. A scan may take hours, and the process may be
killed before the end."""
_PROBLEMS = ("cannot be read", "can be read only in part", "have an unusual frame rate")
"""Descriptions of the videos with a `reason`, `damage` and `timing`."""
_LISTING = ".problems.txt"
"""Suffix of the file that lists the videos with problems."""
_UNSEEKABLE = ".unseekable.txt"
"""Suffix of the file in which readers note the videos in which a seek has failed. The index takes
them over when it is opened."""
_STOPPED = "while videos were scanned; repeat the command to continue"


class Entry(NamedTuple):
    """Index entry of one video."""

    size: int  # `Status.size` of `video_status`; -1 if missing
    modified: int  # `Status.version`, such as the modification time; -1 if missing
    scanned: str  # `ScannedVideo.packed()`; empty if the video is unreadable
    reason: str  # why the video is unreadable; empty if the video is readable
    damage: str = ""  # `ScannedVideo.damage`
    timing: str = ""  # `ScannedVideo.timing`
    seeks: bool = True  # whether seeks work; if not, the video is read from its beginning

    @classmethod
    def of_scan(cls, status: tuple[int, int], scanned: ScannedVideo | str) -> Entry:
        """Return the entry of a video from its size, its version, and a result of `scan_each`."""
        if isinstance(scanned, str):
            return cls(*status, "", scanned)
        return cls(*status, scanned.packed(), "", scanned.damage, scanned.timing)

    @property
    def content(self) -> bytes:
        """The size and the result of the scan, which do not depend on the place of the video."""
        scanned = zlib.decompress(base64.b64decode(self.scanned)) if self.scanned else b""
        return b"%d %d %s\n" % (self.size, not self.reason, scanned)

    @property
    def is_final(self) -> bool:
        """Whether the entry may be reused for an unchanged video, so that no new scan is needed."""
        return self.reason in ("", KILLER)

    def fits(self, size: int, modified: int) -> bool:
        """Return whether the entry may be reused for a video.

        Uploading a video changes its modification time. An entry that was made before an upload is
        therefore recognized by the size alone.
        """
        was_uploaded = modified < -1 < self.modified
        same_time = was_uploaded or self.modified == modified
        return self.is_final and self.size == size and same_time and self._is_sound

    @property
    def _is_sound(self) -> bool:
        """Whether the result of the scan is not damaged."""
        try:
            return not self.scanned or self.content.endswith(b"]\n")
        except (ValueError, zlib.error):
            return False


def open_index(csv: Path, paths: Sequence[str], *, workers: int | None = None) -> ScannedVideos:
    """Load the index of a list of videos, scan videos without a valid entry, and save the index.

    In a distributed run, all processes must call this function. Rank 0 scans the videos and sends
    the index to the other ranks, which wait without a timeout.

    Unreadable videos do not raise an error. Instead, a warning gives their number and the first of
    them, and a file beside the index lists them all.

    Args:
        csv: The path of the list. It determines where the index is saved.
        paths: The videos in the order of the list: video files, prepared files or folders of JPEG
            files.
        workers: Number of processes that scan videos. By default one per core.
    """

    def open_here() -> ScannedVideos:
        names = _names(csv, paths)
        entries = _scan_new(csv, dict(zip(names, paths, strict=True)), workers)
        listed = [entries[name] for name in names]
        _report(csv, dict(zip(paths, listed, strict=True)))
        return _in_memory(csv, listed, paths)

    return broadcast_from_main(open_here)


def _in_memory(csv: Path, entries: Sequence[Entry], paths: Sequence[str]) -> ScannedVideos:
    content, times = hashlib.sha256(), hashlib.sha256()
    for entry in entries:
        content.update(entry.content)
        times.update(f"{entry.modified}\n".encode())
    both = zip(paths, entries, strict=True)
    return ScannedVideos(
        csv,
        ((entry.scanned, entry.reason, entry.seeks) for entry in entries),
        [(path, entry.reason) for path, entry in both if entry.reason],
        content.hexdigest()[:16],
        times.hexdigest()[:16],
    )


@cache
def note_unseekable(csv: Path, path: str) -> None:
    """Record once for the next `open_index` that a video must be read from its beginning."""
    (name,) = _names(csv, [path])
    for file in filterfalse(is_remote, index_files(csv, _UNSEEKABLE)):
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            with open(file, "a", encoding="utf-8", errors="surrogateescape") as stream:
                stream.write(f"{json.dumps(name)}\n")
            return


def _names(csv: Path, paths: Sequence[str]) -> list[str]:
    """Return the name of each video in the index.

    For videos below the folder of the list, the name is the path relative to that folder, so that
    the index stays valid if the data set is moved. For other videos, it is the absolute path.
    """
    here = os.getcwd()
    folder = os.path.join(str(absolute(csv.parent)), "")
    full = (path if is_remote(path) else os.path.join(here, path) for path in paths)
    return [path.removeprefix(folder) for path in full]


def _scan_new(csv: Path, path_of: Mapping[str, str], workers: int | None) -> dict[str, Entry]:
    """Return the entries of all videos by name. Scan videos without a valid entry."""
    found = video_status(path_of.values())
    status = {name: found[p][:2] if p in found else (-1, -1) for name, p in path_of.items()}
    known = dict[str, Entry]()
    for entries in _load(csv):
        known |= {n: e for n, e in entries.items() if n in status and e.fits(*status[n])}
    unseekable = _take_unseekable(csv) & known.keys()
    known |= {name: known[name]._replace(seeks=False) for name in unseekable}
    left = {path: name for name, path in path_of.items() if name not in known}
    if left:
        logger.info("%d videos of %s must be scanned", len(left), csv)
    each = scan_each(list(left), workers)
    bar = tqdm(each, f"index of {csv.name}", len(left), unit="video", disable=None)
    saved = time.monotonic()
    try:
        with contextlib.closing(each):
            for path, scanned in bar:
                known[left[path]] = Entry.of_scan(status[left[path]], scanned)
                stop_if_asked(_STOPPED)
                if time.monotonic() - saved > _SAVE_SECONDS:
                    _save(csv, known)
                    saved = time.monotonic()
    finally:
        if left or unseekable:
            _save(csv, known)
    return known


def _take_unseekable(csv: Path) -> set[str]:
    """Return the names of the videos that `note_unseekable` has recorded, and delete the record."""
    names = set[str]()
    for file in filterfalse(is_remote, index_files(csv, _UNSEEKABLE)):
        with contextlib.suppress(OSError):
            for line in file.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
                with contextlib.suppress(ValueError):  # half a line, if a process was killed
                    names.add(str(json.loads(line)))
            file.unlink()
    return names


def index_files(csv: Path, suffix: str = ".json.gz") -> list[Path]:
    """Return both possible paths of an index: beside the list, and in the user's cache folder."""
    path = absolute(csv)
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    beside = path.with_name(f"{csv.stem}.index{suffix}")
    return [beside, _cache_folder() / f"{digest}.index{suffix}"]


def unlisted(paths: Sequence[str]) -> Path:
    """Return a path to pass to `open_index` for videos that are not listed in a file.

    The path lies in the user's cache folder and depends only on the paths of the videos. No list
    file is written there.
    """
    names = b"\0".join(os.fsencode(os.path.abspath(path)) for path in paths)
    return _cache_folder() / f"videos-{hashlib.sha256(names).hexdigest()[:16]}"


def _cache_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "multigrid"


def publish_index(csv: Path) -> None:
    """Copy the index of a remote list from the user's cache folder to the folder of the list."""
    beside, cached = index_files(csv)
    if cached.is_file():
        upload(cached, str(beside))


def _load(csv: Path) -> Iterator[dict[str, Entry]]:
    """Yield the entries of each existing index file by name. The file beside the list comes last.

    Warn about a file that is not an index, is damaged, or has another version.
    """
    for file in reversed(index_files(csv)):
        if not file.is_file():
            continue
        try:
            content = json.loads(gzip.decompress(file.read_bytes()))
            if content["version"] != _VERSION:
                raise UserError(f"the version is not {_VERSION}")
            entries = {name: Entry(*entry) for name, entry in content["videos"].items()}
        except Exception as error:  # zlib, json and wrong fields raise errors without a common base
            logger.warning("The index %s will be rebuilt: %r", file, error)
        else:
            yield entries


def _save(csv: Path, entries: Mapping[str, Entry]) -> None:
    """Write the index file if at least one video can be read.

    Otherwise keep the existing file, because the disk with the videos is probably not mounted.
    """
    if any(entry.is_final for entry in entries.values()):
        content = json.dumps({"version": _VERSION, "videos": entries}).encode()
        if not _write(csv, ".json.gz", gzip.compress(content, 1, mtime=0)):
            logger.warning("The index of %s cannot be saved. The next run scans all videos", csv)


def _write(csv: Path, suffix: str, content: bytes) -> Path | None:
    """Write a file beside the list, or in the cache folder if the list's folder is not writable.

    Returns:
        The path of the written file, or None if neither folder is writable.
    """
    for file in filterfalse(is_remote, index_files(csv, suffix)):  # a bucket is not changed
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(file, shared=True) as stream:
                stream.write(content)
        except (OSError, UserError) as error:
            logger.info("%s cannot be written: %s", file, error)
        else:
            return file
    return None


def _report(csv: Path, entries: Mapping[str, Entry]) -> None:
    """Warn about unreadable, damaged and unusual videos, and list all of them in a file.

    Args:
        csv: The path of the list.
        entries: The entries by the path of the video.
    """
    rows = defaultdict[str, list[str]](list)
    for path, entry in entries.items():
        for problem, detail in zip(
            _PROBLEMS, (entry.reason, entry.damage, entry.timing), strict=True
        ):
            if detail:
                rows[problem].append(f"{path} {detail}")
    for old in filterfalse(is_remote, index_files(csv, _LISTING)):
        with contextlib.suppress(OSError):
            old.unlink(missing_ok=True)
    lines = "".join(f"{row}\n" for row in chain(*rows.values()))
    file = _write(csv, _LISTING, lines.encode("utf-8", "backslashreplace")) if rows else None
    for problem, videos in rows.items():
        found = (len(videos), len(entries), csv, problem, shorten_list(videos))
        where = file or "no file, because no folder is writable"
        logger.warning("%d of the %d videos of %s %s: %s. All are listed in %s", *found, where)
