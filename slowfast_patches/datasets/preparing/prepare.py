"""Convert a data set to a form made for multigrid reading.

    lists          collect the videos of the csv files, each once
    earlier runs   keep prepared files whose modification time is that of their source
    workers        encode one video each, in random order; report unreadable videos
    disk space     estimate the total size after the first videos
    lists, index   write them once all videos are done

The output folder contains the prepared files in videos/, the settings in prepared.json, and the
lists. The run that writes to it holds the lock run.lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import av
from tqdm import tqdm

from slowfast_patches.datasets.preparing.encode import write_prepared
from slowfast_patches.datasets.preparing.video_lists import (
    VideoList,
    format_csv,
    list_titles,
    write_classes,
)
from slowfast_patches.datasets.reading.containers import frame_files
from slowfast_patches.datasets.reading.index import open_index
from slowfast_patches.datasets.reading.limits import LIMITS, ReadingLimits
from slowfast_patches.datasets.reading.prepared import TAG
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.video_record import UnreadableVideoError
from slowfast_patches.utils.files import TEMPORARY, write_text
from slowfast_patches.utils.lock import locked
from slowfast_patches.utils.machine import available_cores
from slowfast_patches.utils.processes import WorkerCrashed, run_each
from slowfast_patches.utils.tables import format_duration

_MOST_REASONS = 10
_SAMPLE = 8
_SAFETY = 1.1
"""Stop only if the estimated size exceeds the free space by this factor."""


class Source(NamedTuple):
    """Video to prepare."""

    path: str
    target: str
    """Path of the prepared file, relative to the output folder."""
    size: int
    """Bytes of the file, or of the JPEG files in a folder. 0 if it does not exist."""
    modified: int | None
    """Modification time in seconds. None if the file does not exist."""


@dataclass(frozen=True)
class Report:
    """Results of a run."""

    folder: str
    keys: dict[str, str | int]
    """Configuration keys for training on the data set."""
    videos: int
    """Number of prepared files in the lists."""
    lists: dict[str, int]
    """Videos in each csv file, by its title (`list_titles`)."""
    from_earlier_runs: int
    unreadable: Sequence[dict[str, str]]
    """`path` and `reason` of each omitted video."""
    source_size: int
    size: int
    """Bytes of the sources (`source_size`) and of the prepared files."""
    seconds: float
    """Duration of this run."""


def prepare(
    lists: Sequence[VideoList],
    out: Path,
    *,
    short_side: int = 256,
    limits: ReadingLimits = LIMITS,
    workers: int | None = None,
    separator: str = " ",
    classes: Sequence[str] = (),
) -> Report:
    """Prepare every video in the lists, and write the new lists.

    Videos that an earlier run prepared are kept. Unreadable videos, and videos beyond the limits,
    are omitted from the lists and named in unreadable.txt with the reason.

    Args:
        lists: The videos and their labels.
        out: The folder to write.
        short_side: Larger frames are shrunk to this short side, in pixels.
        limits: Limits on what is read.
        workers: Processes that encode. By default one per core.
        separator: The separator of the written lists.
        classes: The class names to write to classes.json, if any.

    Raises:
        ValueError: `out` cannot be used, for instance because another run is writing to it or it
            was prepared with other settings. Or the disk is too small, or a list has no readable
            video.
        OSError: `out` cannot be written, for instance because the disk is full. Files written so
            far are complete.
    """
    workers = available_cores() if workers is None else workers
    if workers < 1 or short_side < 16 or limits.pixels < 1:
        raise ValueError(
            f"--workers {workers} and --max-frame-pixels {limits.pixels} must be 1 or more, and "
            f"--short-side {short_side} 16 or more"
        )
    out = Path(os.path.abspath(out))
    _check_apart(lists, out)
    start = time.perf_counter()
    root = os.path.commonpath([videos.root for videos in lists])
    with locked(out, "--output"):
        _claim(out, lists, {"format": TAG, "short_side": short_side, "root": root})
        sources = _find_sources(lists, root)
        format_csv(
            ((source.target, 0) for source in sources.values()), separator
        )  # check the paths before the long work
        if classes:
            write_classes(classes, out)
        every = list(dict.fromkeys(sources.values()))
        left = [source for source in every if not _is_made(out, source)]
        work = partial(_prepare_one, out, short_side, limits)
        try:
            reasons = _prepare_all(left, work, out, workers)
        finally:
            for path in (out / "videos").rglob(f"*{TEMPORARY}"):
                path.unlink(missing_ok=True)
        counts = _write_lists(lists, sources, reasons, out, separator, workers)
    made = [source for source in every if source not in reasons]
    count = len(classes) or 1 + max(label for videos in lists for _, label in videos.videos)
    return Report(
        folder=str(out),
        keys=_training_keys(out, separator, count),
        videos=len(made),
        lists=counts,
        from_earlier_runs=len(every) - len(left),
        unreadable=[{"path": s.path, "reason": reasons[s]} for s in every if s in reasons],
        source_size=sum(source.size for source in made),
        size=sum((out / source.target).stat().st_size for source in made),
        seconds=time.perf_counter() - start,
    )


def _training_keys(out: Path, separator: str, num_classes: int) -> dict[str, str | int]:
    """Return the keys that train a model on the lists in `out`."""
    keys: dict[str, str | int] = {"DATA.PATH_TO_DATA_DIR": str(out), "DATA.PATH_PREFIX": ""}
    if separator != " ":
        keys["DATA.PATH_LABEL_SEPARATOR"] = separator
    return {**keys, "MODEL.NUM_CLASSES": num_classes}


def format_report(report: Report) -> str:
    """Format a report as a table, followed by the unreadable videos and the keys for training."""
    rows = {
        "videos": f"{report.videos:,}",
        **{f"  in {name}": f"{count:,}" for name, count in report.lists.items()},
        "of these from earlier runs": f"{report.from_earlier_runs:,}",
        "unreadable, left out": f"{len(report.unreadable):,}",
        "source": _size(report.source_size),
        "prepared": _size(report.size),
        "time of this run": format_duration(report.seconds),
    }
    lines = [f"{name:28}{value:>10}" for name, value in rows.items()]
    if bad := report.unreadable:
        lines += [f"{len(bad)} videos cannot be read and are in no list (unreadable.txt has all):"]
        lines += ["  {path}: {reason}".format(**video) for video in bad[:_MOST_REASONS]]
    pairs = shlex.join(map(str, chain(*report.keys.items())))
    return "\n".join([*lines, f"To train on it, give: {pairs}"])


def _check_apart(lists: Sequence[VideoList], out: Path) -> None:
    """Check that the output folder does not overlap with the data set.

    Raises:
        ValueError: The output folder is the folder of a csv file, so the file would be replaced. Or
            it lies in the data set, so it would look like the folder of a class.
    """
    for origin in (videos.origin for videos in lists):
        if origin in (out, *out.parents) if origin.is_dir() else origin.parent == out:
            raise ValueError(
                f"--output {out} is in the folder of the data set; choose another folder"
            )


def _claim(out: Path, lists: Sequence[VideoList], how: dict[str, object]) -> None:
    """Record the settings of the data set in `out`.

    Raises:
        ValueError: `out` was prepared with other settings, or has a list that was not made here.
    """
    path = out / "prepared.json"
    if path.exists():
        made = how | json.loads(path.read_text())
        if not os.path.exists(made["root"]):  # the sources have been moved
            made["root"] = how["root"]
        if differ := [key for key in how if made[key] != how[key]]:
            what = ", ".join(f"{key} {made[key]} (now {how[key]})" for key in differ)
            raise ValueError(
                f"{out} was prepared with {what}; choose another folder, or give all lists at once"
            )
    elif foreign := [videos.name for videos in lists if (out / videos.name).exists()]:
        raise ValueError(
            f"{out / foreign[0]} was not made by multigrid-prepare; choose another folder"
        )
    write_text(path, json.dumps(how, indent=2) + "\n")


def _find_sources(lists: Sequence[VideoList], root: str) -> dict[str, Source]:
    """Return the source of each path in the lists. Paths to the same file share a source."""
    of_path = dict[str, Source]()
    of_target = dict[str, str]()
    for path in dict.fromkeys(video.path for videos in lists for video in videos.videos):
        file = os.path.abspath(path)
        parts = [part for part in Path(os.path.relpath(file, root)).parts if part != ".."]
        target = "/".join(["videos", *parts])
        if not target.lower().endswith(".mp4"):
            target += ".mp4"
        if of_target.setdefault(target, file) != file:
            raise ValueError(
                f"{file} and {of_target[target]} would both become {target}: prepare the lists "
                "that have them into separate folders"
            )
        of_path[path] = Source(file, target, *_state(file))
    return of_path


def _state(path: str) -> tuple[int, int | None]:
    """Return the size and modification time of a file, or of the JPEG files in a folder."""
    try:
        status = [os.stat(path)]
        if os.path.isdir(path):
            status += [os.stat(os.path.join(path, name)) for name in frame_files(path)]
    except OSError:
        return 0, None
    return sum(s.st_size for s in status), int(max(s.st_mtime for s in status))


def _is_made(out: Path, source: Source) -> bool:
    """Return whether the prepared file of a source is up to date.

    It also counts as up to date if the source has been deleted since.
    """
    _, modified = _state(str(out / source.target))
    return modified is not None and source.modified in (modified, None)


def _prepare_all(
    sources: Sequence[Source], work: partial[str], out: Path, workers: int
) -> dict[Source, str]:
    """Prepare the sources in random order. Stop after the first few if the disk is too small.

    Returns:
        The reason for each source that cannot be read.
    """
    jobs = random.Random(0).sample(sources, len(sources))
    done = list[Source]()
    reasons = dict[Source, str]()
    total = sum(source.size for source in sources)
    bar = tqdm(desc="prepare", total=total, unit="B", unit_scale=True, disable=None)
    with bar, contextlib.closing(run_each(work, jobs, workers)) as outcomes:
        for source, reason in outcomes:
            done.append(source)
            if isinstance(reason, WorkerCrashed):
                reasons[source] = "kills the process that reads it"
            elif reason:
                reasons[source] = reason
            bar.update(source.size)
            if len(done) == max(_SAMPLE, 2 * workers) < len(jobs):
                _check_room(done, reasons, [job for job in jobs if job not in set(done)], out)
    return reasons


def _check_room(
    done: Sequence[Source], reasons: dict[Source, str], rest: Sequence[Source], out: Path
) -> None:
    """Check the first results, and estimate whether the remaining videos fit on the disk.

    Raises:
        ValueError: None of the first videos can be read, or the remaining ones do not fit.
    """
    made = [source for source in done if source not in reasons]
    if not made:
        raise ValueError(
            f"none of {len(done)} videos tried can be read, the first {done[0].path}: "
            f"{reasons[done[0]]}; check the lists and --prefix"
        )
    free = shutil.disk_usage(out).free
    share = sum(source.size for source in rest) / max(1, sum(source.size for source in made))
    size = share * sum((out / source.target).stat().st_size for source in made)
    if size > _SAFETY * free:
        raise ValueError(
            f"the other {len(rest):,} videos will take about {_size(size)}, and {_size(free)} are "
            f"free on the disk of {out}: free some space and repeat the command"
        )


def _prepare_one(out: Path, short_side: int, limits: ReadingLimits, source: Source) -> str:
    """Write one prepared file. Runs in a worker process.

    Returns:
        The reason why the source cannot be read, or an empty string.

    Raises:
        OSError: The target cannot be written.
    """
    target = out / source.target
    try:
        record = scan(source.path, limits)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_prepared(source.path, record, target, short_side=short_side, limits=limits)
        if source.modified is not None:
            os.utime(target, (source.modified, source.modified))
    except UnreadableVideoError as error:
        return str(error)
    except OSError as error:
        # PyAV exceptions cannot be pickled, so re-raise them as OSError.
        raise OSError(error.errno, error.strerror, str(target)) from None
    except av.FFmpegError as error:
        return f"cannot be encoded: {type(error).__name__}: {error}"
    return ""


def _write_lists(
    lists: Sequence[VideoList],
    sources: dict[str, Source],
    reasons: dict[Source, str],
    out: Path,
    separator: str,
    workers: int,
) -> dict[str, int]:
    """Write the lists of prepared videos, their indexes, and unreadable.txt.

    Returns:
        The number of videos in each list, by its title.
    """
    unreadable = out / "unreadable.txt"
    unreadable.unlink(missing_ok=True)
    if reasons:
        lines = (f"{s.path}\t{' '.join(reason.split())}\n" for s, reason in reasons.items())
        write_text(unreadable, "".join(lines))
    rows = dict[str, list[tuple[str, int]]]()
    titles = list_titles(lists)
    for videos in lists:
        listed = [(sources[path], label) for path, label in videos.videos]
        rows[videos.name] = [(s.target, label) for s, label in listed if s not in reasons]
        if not rows[videos.name]:
            raise ValueError(f"{videos.origin}: no video for {videos.name} can be read")
    for name, made in rows.items():
        write_text(out / name, format_csv(made, separator))
    for name, made in rows.items():
        open_index(out / name, [str(out / target) for target, _ in made], workers=workers)
    return {titles[name]: len(made) for name, made in rows.items()}


def _size(size: float) -> str:
    """Format a number of bytes with three digits and a unit, such as 1.25GB."""
    text: str = tqdm.format_sizeof(size, "B")
    return text
