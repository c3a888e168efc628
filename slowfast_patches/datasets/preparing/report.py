"""What preparing a data set will take, and what it took, as people read it."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from tabulate import tabulate
from tqdm import tqdm

from slowfast_patches.datasets.preparing.prepared_set import Entry
from slowfast_patches.utils.report import format_duration

__all__ = ["Forecast", "Report", "format_report", "format_size"]

_SAFETY = 1.1
"""A forecast is off by some percent: what does not fit lacks more room than that."""
_MOST_REASONS = 10


@dataclass(frozen=True)
class Forecast:
    """What the rest of the videos will take."""

    videos: int
    size: float
    """Bytes."""
    seconds: float
    free: int
    """Bytes on the disk."""

    @classmethod
    def of(cls, entries: Sequence[Entry], left: Sequence[int], workers: int, free: int) -> Forecast:
        """By some videos that are done, for others of so many bytes each."""
        seen = sum(entry.source_size for entry in entries)
        taken = sum(entry.size for entry in entries if not entry.linked)
        seconds = sum(entry.seconds for entry in entries) / min(workers, max(1, len(left)))
        share = sum(left) / max(1, seen)
        return cls(len(left), taken * share, seconds * share, free)

    @property
    def fits(self) -> bool:
        """Whether there is room, as far as a forecast can say."""
        return self.size <= _SAFETY * self.free

    def __str__(self) -> str:
        return (
            f"the other {self.videos:,} videos will take about {format_size(self.size)} and "
            f"{format_duration(self.seconds)}; {format_size(self.free)} are free"
        )


@dataclass(frozen=True)
class Report:
    """What was done."""

    folder: Path
    entries: Sequence[Entry]
    """Every prepared file that the lists name, once."""
    unreadable: Sequence[tuple[str, str]]
    """(path, reason)."""
    kept: int
    """Of the entries, those of earlier runs."""
    separator: str
    classes: int
    seconds: float
    """Of this run."""

    @property
    def keys(self) -> dict[str, str | int]:
        """Of a config, to train with."""
        keys = {"DATA.PATH_TO_DATA_DIR": str(self.folder), "DATA.PATH_PREFIX": ""}
        if self.separator != " ":
            keys["DATA.PATH_LABEL_SEPARATOR"] = self.separator.replace("\t", "\\t")
        return {**keys, "MODEL.NUM_CLASSES": self.classes}

    def to_json(self) -> dict[str, Any]:
        """As plain data; sizes in bytes."""
        return {
            "folder": str(self.folder),
            "keys": self.keys,
            "videos": len(self.entries),
            "from_earlier_runs": self.kept,
            "unreadable": [{"path": path, "reason": reason} for path, reason in self.unreadable],
            "frames": sum(entry.frames for entry in self.entries),
            "source_size": sum(entry.source_size for entry in self.entries),
            "size": sum(entry.size for entry in self.entries),
            "seconds": self.seconds,
        }


def format_report(report: Report) -> str:
    """A table of what was done, the videos that could not be read, and how to train on it."""
    parts = [tabulate(_rows(report), colalign=("left", "right"), disable_numparse=True)]
    if bad := report.unreadable:
        lines = [f"{len(bad)} videos cannot be read and are in no list (unreadable.txt has all):"]
        lines += [f"  {path}: {reason}" for path, reason in bad[:_MOST_REASONS]]
        parts.append("\n".join(lines))
    pairs = shlex.join(str(part) for part in chain(*report.keys.items()))
    parts.append(f"To train on it, give: {pairs}")
    return "\n\n".join(parts)


def format_size(size: float) -> str:
    """Bytes with three digits and a prefix: 1.25 GB."""
    text: str = tqdm.format_sizeof(size, "B")
    digits = text.rstrip("kMGTPEZYB")
    return f"{digits} {text[len(digits) :]}"


def _rows(report: Report) -> list[tuple[str, str]]:
    entries = report.entries
    source, size = (sum(x) for x in zip(*((e.source_size, e.size) for e in entries), strict=True))
    frames, seconds = sum(e.frames for e in entries), sum(e.seconds for e in entries)
    worst = [e.psnr for e in entries if e.psnr is not None]
    rows = [
        ("videos", f"{len(entries):,}"),
        ("of these from earlier runs", f"{report.kept:,}"),
        ("unreadable, left out", f"{len(report.unreadable):,}"),
        ("frames", f"{frames:,}"),
        ("source", format_size(source)),
        ("prepared", format_size(size)),
        ("prepared / source", f"{size / max(1, source):.2f}"),
    ]
    if worst:
        middle, lowest = statistics.median(worst), min(worst)
        rows.append(("luma PSNR of a video's worst frame, median", f"{middle:.1f} dB"))
        rows.append(("luma PSNR of a video's worst frame, lowest", f"{lowest:.1f} dB"))
    rows.append(("frames per second and process", f"{frames / max(seconds, 1e-9):.0f}"))
    rows.append(("time of all processes", format_duration(seconds)))
    return [*rows, ("time of this run", format_duration(report.seconds))]
