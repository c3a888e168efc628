"""A folder in which a prepared data set grows, over as many runs as it takes.

videos/                  the prepared files
prepared.jsonl           the journal: what each of them was made of, a line as it is whole
run.lock                 held by the run that writes
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TextIO

from slowfast_patches.datasets.preparing.video_lists import VideoList
from slowfast_patches.datasets.reading.files import MAX_PIXELS, frame_files
from slowfast_patches.datasets.reading.prepared import TAG
from slowfast_patches.utils.files import TEMPORARY
from slowfast_patches.utils.lock import held

__all__ = ["Entry", "PreparedSet", "Settings", "Source", "open_set"]

_LONGEST_NAME = 200
"""Bytes of a source's name; with what is added to it, it stays below the usual limit of 255."""
State = tuple[int, int]
"""Bytes, and nanoseconds of the last modification; of a folder, over the JPEG files in it."""


@dataclass(frozen=True)
class Settings:
    """How the videos of a set are encoded."""

    short_side: int = 256
    """Pixels; smaller videos keep their size."""
    psnr: float = 37.0
    """dB that no frame's luma may be below."""
    max_frame_pixels: int = MAX_PIXELS
    """Larger sources are refused; nothing of the set depends on it."""

    def __post_init__(self) -> None:
        if self.short_side < 16:
            raise ValueError(f"--short-side is {self.short_side}: give 16 pixels or more")
        if not 20 <= self.psnr <= 50:
            raise ValueError(f"--psnr is {self.psnr:g}: give 20 to 50 dB")
        if self.max_frame_pixels < 1:
            raise ValueError(f"--max-frame-pixels is {self.max_frame_pixels}: give 1 or more")


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
    psnr: float
    """dB of the luma of the worst frame."""
    seconds: float
    """That one process took."""

    @property
    def state(self) -> State:
        """The source's."""
        return self.source_size, self.source_mtime_ns


@dataclass(frozen=True)
class PreparedSet:
    """The folder, its prepared files by their targets, and the journal that more are noted in."""

    folder: Path
    entries: dict[str, Entry]
    journal: TextIO
    _taken: dict[str, str] = field(default_factory=dict)

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
        self.note(asdict(entry))

    def note(self, line: dict[str, Any]) -> None:
        """Write a line of the journal."""
        self.journal.write(json.dumps(line) + "\n")
        self.journal.flush()


@contextmanager
def open_set(folder: Path, settings: Settings, lists: Sequence[VideoList]) -> Iterator[PreparedSet]:
    """The set in a folder, held against other runs while the body lasts; what a run that was killed
    left half-written is removed.

    Raises:
        ValueError: another run writes it, it was made with other settings, or has lists that were
            not made here, or were made from others.
    """
    with held(folder, "--output"):
        path, how = folder / "prepared.jsonl", {"format": TAG, **asdict(settings)}
        del how["max_frame_pixels"]
        lines = _read_lines(path)
        made = next((line["settings"] for line in lines if "settings" in line), None)
        if made not in (None, how):
            what = ", ".join(f"{key} {made.get(key)} (now {how[key]})" for key in how)
            raise ValueError(f"{folder} was prepared with {what}; choose another folder")
        heads: list[dict[str, Any]] = [{"settings": how}] if made is None else []
        heads += _claimed(folder, lines, lists)
        names = [one.name for one in fields(Entry)]
        entries = [Entry(**{n: line[n] for n in names}) for line in lines if line.get("psnr")]
        with path.open("a", encoding="utf-8") as journal:
            prepared = PreparedSet(folder, {entry.target: entry for entry in entries}, journal)
            for line in heads:
                prepared.note(line)
            _remove_temporaries(folder)
            try:
                yield prepared
            finally:
                _remove_temporaries(folder)


def _claimed(
    folder: Path, lines: Sequence[dict[str, Any]], lists: Sequence[VideoList]
) -> list[dict[str, Any]]:
    """What the journal has yet to say of where the lists come from; ValueError for a list that is
    not of this set, and would be overwritten."""
    origins = {line["list"]: line["origin"] for line in lines if "list" in line}
    for videos in lists:
        path, origin = folder / videos.name, origins.get(videos.name)
        if origin is None and path.exists():
            raise ValueError(f"{path} was not made here; choose another folder")
        if origin not in (None, str(videos.origin)) and os.path.exists(str(origin)):
            raise ValueError(f"{path} was made from {origin}; choose another folder")
    now = [{"list": videos.name, "origin": str(videos.origin)} for videos in lists]
    return [line for line in now if origins.get(line["list"]) != line["origin"]]


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a journal; what a kill left of the last one is cut off."""
    data = path.read_bytes() if path.exists() else b""
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.truncate(path, len(whole))
    try:
        return [json.loads(line) for line in whole.splitlines()]
    except json.JSONDecodeError as error:
        said = f"{path} has a damaged line, {error.doc[:40]!r}: delete that line, and its video is"
        raise ValueError(f"{said} prepared anew") from None


def _remove_temporaries(folder: Path) -> None:
    """Remove half-written files, whose writers are dead."""
    for path in (folder / "videos").rglob(f"*{TEMPORARY}"):
        path.unlink(missing_ok=True)


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
