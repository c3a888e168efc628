"""A folder in which a prepared data set grows, over as many runs as it takes.

videos/                  the prepared files
prepared.json            how they are encoded, and what each list was made from
prepared.jsonl           the journal: what each of them was made of, a line as it is whole
run.lock                 held by the run that writes
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from slowfast_patches.datasets.preparing.video_lists import VideoList
from slowfast_patches.datasets.reading.files import frame_files
from slowfast_patches.datasets.reading.prepared import TAG
from slowfast_patches.utils.files import TEMPORARY, write_text
from slowfast_patches.utils.lock import held

__all__ = ["Entry", "PreparedSet", "Source", "open_set"]

_LONGEST_NAME = 200
"""Bytes of a source's name; with what is added to it, it stays below the usual limit of 255."""
State = tuple[int, int]
"""Bytes, and nanoseconds of the last modification; of a folder, over the JPEG files in it."""


@dataclass(frozen=True)
class Source:
    """A video to prepare, and the state it is in; `state` is None where there is no such file."""

    path: str
    root: str
    state: State | None

    @classmethod
    def at(cls, path: str, root: Path) -> Source:
        """The source at a path as a list has it; different spellings give the same one."""
        real = os.path.realpath if ".." in Path(path).parts else os.path.abspath
        return cls(str(real(path)), str(root), _state(path))

    @property
    def size(self) -> int:
        """Bytes; 0 if there is no such file."""
        return self.state[0] if self.state else 0

    @property
    def name(self) -> str:
        """Where it lies in its root. Of one outside, the part of the path that differs."""
        parts = [p for p in Path(os.path.relpath(self.path, self.root)).parts if p != ".."]
        parts = parts or ["root"]  # a folder of frames that is above the root, or it
        if len(os.fsencode(parts[-1])) > _LONGEST_NAME:
            cut = os.fsencode(parts[-1])[:_LONGEST_NAME].decode(errors="ignore")
            parts[-1] = f"{cut}~{self.digest}"
        return "/".join(parts)

    @property
    def digest(self) -> str:
        """Of its path."""
        return hashlib.sha256(os.fsencode(self.path)).hexdigest()[:8]


@dataclass(frozen=True)
class Entry:
    """A line of the journal: a prepared file that is whole, and what it was made of."""

    target: str
    """Relative to the set's folder."""
    source: str
    source_size: int
    source_mtime_ns: int
    frames: int
    size: int

    @property
    def state(self) -> State:
        """The source's."""
        return self.source_size, self.source_mtime_ns


class PreparedSet:
    """The folder, its prepared files by their targets, and the journal of them."""

    def __init__(self, folder: Path, entries: dict[str, Entry], journal: TextIO) -> None:
        self.folder = folder
        self.entries = entries
        self._journal = journal
        self._taken = dict[str, str]()

    def target_of(self, source: Source) -> str:
        """Where the source's prepared file lies; no other source, of this run or of earlier ones,
        has the same. A source that has moved keeps its own."""
        plain = f"videos/{source.name}.mp4"
        entry = self.entries.get(plain)
        is_free = entry is None or source.path == entry.source or source.state == entry.state
        if is_free and self._taken.setdefault(plain, source.path) == source.path:
            return plain
        return f"videos/{source.name}~{source.digest}.mp4"

    def kept(self, target: str, source: Source) -> Entry | None:
        """The entry of a file that is whole and was made from the source as it is now, or as it was
        before it was deleted."""
        entry = self.entries.get(target)
        if entry is None or source.state not in (entry.state, None):
            return None
        status = _state(str(self.folder / target))
        return entry if status and status[0] == entry.size else None

    def add(self, entry: Entry) -> None:
        """Note that a file is whole."""
        self.entries[entry.target] = entry
        self._journal.write(_format_entry(entry))
        self._journal.flush()


@contextmanager
def open_set(folder: Path, short_side: int, lists: Sequence[VideoList]) -> Iterator[PreparedSet]:
    """The set in a folder, held against other runs while the body lasts; half-written files, also
    those of runs that were killed, are removed in the end.

    Raises:
        ValueError: another run writes it, it was made with another short side, or has lists that
            were not made here, or were made from others.
    """
    with held(folder, "--output"):
        _claim(folder, short_side, lists)
        journal = folder / "prepared.jsonl"
        entries = _read_journal(journal)
        write_text(journal, "".join(map(_format_entry, entries.values())))
        try:
            with journal.open("a", encoding="utf-8") as stream:
                yield PreparedSet(folder, entries, stream)
        finally:
            for path in (folder / "videos").rglob(f"*{TEMPORARY}"):
                path.unlink(missing_ok=True)


def _claim(folder: Path, short_side: int, lists: Sequence[VideoList]) -> None:
    """Note how the set is encoded and what its lists are made from; ValueError where something else
    is noted, or a list that is not of this set would be overwritten."""
    path = folder / "prepared.json"
    how = {"format": TAG, "short_side": short_side}
    made: dict[str, Any] = json.loads(path.read_text()) if path.exists() else dict(how)
    origins: dict[str, str] = made.pop("lists", {})
    if made != how:
        differ = [key for key in how if made.get(key) != how[key]]
        what = ", ".join(f"{key} {made.get(key)} (now {how[key]})" for key in differ)
        raise ValueError(f"{folder} was prepared with {what}; choose another folder")
    for videos in lists:
        listed = folder / videos.name
        origin = origins.get(videos.name)
        if origin is None and listed.exists():
            raise ValueError(f"{listed} was not made here; choose another folder")
        if origin not in (None, str(videos.origin)) and os.path.exists(origin):
            raise ValueError(f"{listed} was made from {origin}; choose another folder")
        origins[videos.name] = str(videos.origin)
    write_text(path, json.dumps(how | {"lists": origins}, indent=2) + "\n")


def _read_journal(path: Path) -> dict[str, Entry]:
    """The prepared files by their targets. A damaged line, as a kill leaves it at the end, is left
    out: its video is prepared anew."""
    entries = dict[str, Entry]()
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with suppress(ValueError, TypeError):
            entry = Entry(**json.loads(line))
            entries[entry.target] = entry
    return entries


def _format_entry(entry: Entry) -> str:
    return json.dumps(asdict(entry)) + "\n"


def _state(path: str) -> State | None:
    try:
        status = os.stat(path)
        if not os.path.isdir(path):
            return status.st_size, status.st_mtime_ns
        files = [os.stat(os.path.join(path, name)) for name in frame_files(path)]
    except OSError:
        return None
    newest = max(s.st_mtime_ns for s in [status, *files])
    return sum(s.st_size for s in files), newest
