"""What preparing a data set made, and what it took, as people and programs read it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from tabulate import tabulate
from tqdm import tqdm

from slowfast_patches.datasets.preparing.prepared_set import Entry
from slowfast_patches.utils.tables import format_duration

__all__ = ["Report", "format_report", "format_size"]

_MOST_REASONS = 10


@dataclass(frozen=True)
class Report:
    """What was done."""

    folder: Path
    entries: Sequence[Entry]  # every prepared file that the lists name, once
    unreadable: Sequence[tuple[str, str]]  # (path, reason)
    kept: int  # of the entries, those of earlier runs
    separator: str
    classes: int
    seconds: float  # of this run

    @property
    def keys(self) -> dict[str, str | int]:
        """Of a config, to train with."""
        keys = {"DATA.PATH_TO_DATA_DIR": str(self.folder), "DATA.PATH_PREFIX": ""}
        if self.separator != " ":
            keys["DATA.PATH_LABEL_SEPARATOR"] = self.separator
        return {**keys, "MODEL.NUM_CLASSES": self.classes}

    def to_json(self) -> dict[str, Any]:
        """As plain data; sizes in bytes."""
        return {
            "folder": str(self.folder),
            "keys": self.keys,
            "videos": len(self.entries),
            "from_earlier_runs": self.kept,
            "unreadable": [{"path": path, "reason": reason} for path, reason in self.unreadable],
            **{name: self.sum(name) for name in ("frames", "source_size", "size")},
            "seconds": self.seconds,
        }

    def sum(self, name: str) -> Any:
        """Of a field of the entries."""
        return sum(getattr(entry, name) for entry in self.entries)


def format_report(report: Report) -> str:
    """A table of what was done, the videos that could not be read, and how to train on it."""
    rows = [
        ("videos", f"{len(report.entries):,}"),
        ("of these from earlier runs", f"{report.kept:,}"),
        ("unreadable, left out", f"{len(report.unreadable):,}"),
        ("frames", f"{report.sum('frames'):,}"),
        ("source", format_size(report.sum("source_size"))),
        ("prepared", format_size(report.sum("size"))),
        ("luma PSNR of the worst frame", f"{min(e.psnr for e in report.entries):.1f} dB"),
        ("time of this run", format_duration(report.seconds)),
    ]
    parts = [tabulate(rows, colalign=("left", "right"), disable_numparse=True)]
    if bad := report.unreadable:
        lines = [f"{len(bad)} videos cannot be read and are in no list (unreadable.txt has all):"]
        lines += [f"  {path}: {reason}" for path, reason in bad[:_MOST_REASONS]]
        parts.append("\n".join(lines))
    pairs = shlex.join(str(part) for part in chain(*report.keys.items()))
    return "\n\n".join([*parts, f"To train on it, give: {pairs}"])


def format_size(size: float) -> str:
    """Bytes with three digits and a prefix: 1.25 GB."""
    text: str = tqdm.format_sizeof(size, "B")
    digits = text.rstrip("kMGTPEZYB")
    return f"{digits} {text[len(digits) :]}"
