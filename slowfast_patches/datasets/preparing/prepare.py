"""Turning a data set into one made for multigrid reading.

lists          the videos of some csv files, each once
journal        what an earlier run made is kept, if its source is as it was
sample         some videos first, which tell the space that the rest will take
workers        one video each; a bad one, or one that kills its worker, is reported
lists, index   once all videos are done
"""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from tabulate import tabulate
from tqdm import tqdm

from slowfast_patches.datasets.preparing.encode import write_prepared
from slowfast_patches.datasets.preparing.prepared_set import Entry, PreparedSet, Source, open_set
from slowfast_patches.datasets.preparing.video_lists import VideoList, format_csv, write_classes
from slowfast_patches.datasets.reading.files import MAX_PIXELS
from slowfast_patches.datasets.reading.index import open_index
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.video_record import UnreadableVideoError
from slowfast_patches.utils.files import write_text
from slowfast_patches.utils.machine import available_cores
from slowfast_patches.utils.processes import Died, run_each
from slowfast_patches.utils.tables import format_duration

__all__ = ["Report", "format_report", "prepare"]

_MOST_REASONS = 10
_SAMPLE = 8
_SAFETY = 1.1
"""A forecast is off by some percent: what does not fit lacks more room than that."""

Job = tuple[Source, str]
"""A video to prepare and its target, relative to the set's folder."""
Results = dict[Source, Entry | str]
"""Of each source its prepared file, or the reason why there is none."""


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


def prepare(
    lists: Sequence[VideoList],
    out: Path,
    *,
    short_side: int = 256,
    max_pixels: int = MAX_PIXELS,
    workers: int | None = None,
    separator: str = " ",
    classes: Sequence[str] = (),
) -> Report:
    """Write the prepared form of every video in the lists, and the lists of them, to `out`.

    Videos that an earlier run wrote are kept. Those that cannot be read, or whose frames have more
    than `max_pixels`, are left out of the lists and are in unreadable.txt with the reason.
    `workers` processes encode, by default one per core. Names of classes, if given, go to
    classes.json with their numbers.

    Raises:
        ValueError: `out` cannot be used (see `open_set`), the disk is too small, or a list has no
            video that can be read.
        OSError: `out` cannot be written, as where the disk is full. What is written is whole.
    """
    if workers is None:
        workers = available_cores()
    for name, value, least in (
        ("--workers", workers, 1),
        ("--short-side", short_side, 16),
        ("--max-frame-pixels", max_pixels, 1),
    ):
        if value < least:
            raise ValueError(f"{name} is {value}: give {least} or more")
    out = Path(os.path.abspath(out))
    start = time.perf_counter()
    _check_apart(lists, out)
    sources = _find_sources(lists)
    with open_set(out, short_side, lists) as done:
        targets = {source: done.target_of(source) for source in sources.values()}
        rows = [(target, 0) for target in targets.values()]
        format_csv(rows, separator)  # raises now rather than in hours
        if classes:
            write_classes(classes, out)
        results = Results()
        for source, target in targets.items():
            if entry := done.kept(target, source):
                results[source] = entry
        kept = len(results)
        jobs = [job for job in targets.items() if job[0] not in results]
        work = partial(_prepare_one, out, short_side, max_pixels)
        results |= _prepare_all(jobs, work, done, workers)
        ordered = {source: results[source] for source in targets}
        bad = [(s.path, reason) for s, reason in ordered.items() if isinstance(reason, str)]
        _write_unreadable(bad, out)
        of_path = {path: results[source] for path, source in sources.items()}
        _write_lists(lists, of_path, out, separator, workers)
    return Report(
        out,
        entries=[result for result in ordered.values() if isinstance(result, Entry)],
        unreadable=bad,
        kept=kept,
        separator=separator,
        classes=len(classes) or 1 + max(label for videos in lists for _, label in videos.videos),
        seconds=time.perf_counter() - start,
    )


def format_report(report: Report) -> str:
    """A table of what was done, the videos that could not be read, and how to train on it."""
    rows = [
        ("videos", f"{len(report.entries):,}"),
        ("of these from earlier runs", f"{report.kept:,}"),
        ("unreadable, left out", f"{len(report.unreadable):,}"),
        ("frames", f"{report.sum('frames'):,}"),
        ("source", _format_size(report.sum("source_size"))),
        ("prepared", _format_size(report.sum("size"))),
        ("time of this run", format_duration(report.seconds)),
    ]
    parts = [tabulate(rows, colalign=("left", "right"), disable_numparse=True)]
    if bad := report.unreadable:
        lines = [f"{len(bad)} videos cannot be read and are in no list (unreadable.txt has all):"]
        lines += [f"  {path}: {reason}" for path, reason in bad[:_MOST_REASONS]]
        parts.append("\n".join(lines))
    pairs = shlex.join(str(part) for part in chain(*report.keys.items()))
    return "\n\n".join([*parts, f"To train on it, give: {pairs}"])


def _check_apart(lists: Sequence[VideoList], out: Path) -> None:
    """What is written must neither replace a list that is read nor be taken for a class."""
    for origin in (videos.origin for videos in lists):
        inside = origin in (out, *out.parents) if origin.is_dir() else origin.parent == out
        if inside:
            raise ValueError(f"--output {out}: the data set itself lies there; choose another")


def _find_sources(lists: Sequence[VideoList]) -> dict[str, Source]:
    """The source of each path in the lists; paths of one file have one source."""
    of_path = dict[str, Source]()
    of_file = dict[str, Source]()
    for videos in lists:
        for path, _ in videos.videos:
            if path not in of_path:
                source = Source.at(path, videos.root)
                of_path[path] = of_file.setdefault(source.path, source)
    return of_path


def _prepare_all(
    jobs: Sequence[Job], work: Callable[[Job], Entry | str], done: PreparedSet, workers: int
) -> Results:
    """Do the jobs, a sample of them first; stop after it if the rest would not fit."""
    first = random.Random(0).sample(jobs, min(len(jobs), max(_SAMPLE, 2 * workers)))
    rest = [job for job in jobs if job not in set(first)]
    results = Results()
    total = sum(source.size for source, _ in jobs)
    with tqdm(desc="prepare", total=total, unit="B", unit_scale=True, disable=None) as bar:
        for part in (first, rest):
            if part is rest and rest:  # none of it is begun before there is room for it
                _check_room(results, rest, done)
            with contextlib.closing(run_each(work, part, workers)) as outcomes:
                for (source, _), made in outcomes:
                    result = "kills the process that reads it" if isinstance(made, Died) else made
                    results[source] = result
                    if isinstance(result, Entry):
                        done.add(result)
                    bar.update(source.size)
    return results


def _check_room(results: Results, rest: Sequence[Job], done: PreparedSet) -> None:
    """Raise ValueError where none of the first videos can be read, or where the disk has no room
    for the rest, by what the first ones took."""
    entries = done.entries.values()
    if not entries:
        source, reason = next(iter(results.items()))
        raise ValueError(
            f"none of {len(results)} videos tried can be read, the first {source.path}: {reason}; "
            "check the lists and --prefix"
        )
    free = shutil.disk_usage(done.folder).free
    source_size = max(1, sum(entry.source_size for entry in entries))
    share = sum(source.size for source, _ in rest) / source_size
    size = share * sum(entry.size for entry in entries)
    if size > _SAFETY * free:
        raise ValueError(
            f"the other {len(rest):,} videos will take about {_format_size(size)}, and "
            f"{_format_size(free)} are free on the disk of {done.folder}: make room and run the "
            "same command again"
        )


def _prepare_one(folder: Path, short_side: int, max_pixels: int, job: Job) -> Entry | str:
    """Runs in a worker: the file that was written, or the reason why the source cannot be read.

    Raises:
        OSError: the target cannot be written.
    """
    source, name = job
    target = folder / name
    try:
        record = scan(source.path, max_pixels)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_prepared(source.path, record, target, short_side=short_side, max_pixels=max_pixels)
        written = target.stat().st_size
    except UnreadableVideoError as error:
        return str(error)
    except OSError as error:
        # PyAV's own errors do not come through a pipe.
        raise OSError(error.errno, error.strerror, str(target)) from None
    except Exception as error:  # a file may find any fault in a codec; the others go on
        return f"cannot be encoded: {type(error).__name__}: {error}"
    size, mtime_ns = source.state or (0, 0)
    return Entry(name, source.path, size, mtime_ns, record.video.frames, written)


def _write_lists(
    lists: Sequence[VideoList],
    results: Mapping[str, Entry | str],
    out: Path,
    separator: str,
    workers: int,
) -> None:
    """Write the lists of what is prepared, each with its index."""
    rows = dict[str, list[tuple[str, int]]]()
    for videos in lists:
        made = [(results[path], label) for path, label in videos.videos]
        rows[videos.name] = [(e.target, label) for e, label in made if isinstance(e, Entry)]
        if not rows[videos.name]:
            raise ValueError(f"{videos.origin}: no video for {videos.name} can be read")
    for name, listed in rows.items():
        write_text(out / name, format_csv(listed, separator))
    for name, listed in rows.items():
        open_index(out / name, [str(out / target) for target, _ in listed], workers=workers)


def _write_unreadable(bad: Sequence[tuple[str, str]], out: Path) -> None:
    path = out / "unreadable.txt"
    path.unlink(missing_ok=True)
    if bad:
        write_text(path, "".join(f"{name}\t{' '.join(why.split())}\n" for name, why in bad))


def _format_size(size: float) -> str:
    """Bytes with three digits and a prefix: 1.25 GB."""
    text: str = tqdm.format_sizeof(size, "B")
    digits = text.rstrip("kMGTPEZYB")
    return f"{digits} {text[len(digits) :]}"
