"""Prepare a data set: encode all its videos in a form from which clips are read faster.

1. Collect the videos of all lists. A video in several lists is prepared once.
2. Keep the prepared files of earlier runs that have the modification time of their source.
3. Encode the other videos in random order, in several processes. Report unreadable videos.
4. After the first videos, estimate the total size. Stop if the disk is too small.
5. When all videos are prepared, write the new lists and their indexes.

The output folder contains the prepared files in videos/, the settings in prepared.json, and the new
lists. A run holds the lock run.lock in the output folder, so that no other run can write there.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import shlex
import shutil
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import av
from tqdm import tqdm

from slowfast_patches.datasets.preparing.encode import write_prepared
from slowfast_patches.datasets.preparing.sources import (
    Source,
    find_sources,
    local_form,
    not_prepared,
    prepared_size,
)
from slowfast_patches.datasets.preparing.video_lists import (
    VideoList,
    format_csv,
    list_overlaps,
    write_classes,
)
from slowfast_patches.datasets.reading.errors import UnreadableVideoError
from slowfast_patches.datasets.reading.index import open_index, publish_index
from slowfast_patches.datasets.reading.limits import LIMITS, ReadingLimits
from slowfast_patches.datasets.reading.prepared import TAG
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.utils.files import TEMPORARY, write_text
from slowfast_patches.utils.lock import locked
from slowfast_patches.utils.machine import available_cores
from slowfast_patches.utils.processes import WorkerCrashed, run_each
from slowfast_patches.utils.storage import absolute, as_path, is_remote
from slowfast_patches.utils.tables import format_duration

logger = logging.getLogger(__name__)

_MAX_FPS = 1000
_MOST_REASONS = 10
_SAMPLE = 8
_SAFETY = 1.1
"""Stop only if the estimated size exceeds this multiple of the free disk space."""


@dataclass(frozen=True)
class Report:
    """Results of a run.

    Attributes:
        keys: Configuration keys for training on the data set.
        videos: Number of prepared files in all lists.
        lists: Maps the name of each csv file to the number of videos in the file.
        from_earlier_runs: Number of prepared files that an earlier run had written.
        unreadable: `path` and `reason` of each video that is left out because it cannot be read.
        overlaps: Warnings about videos that are in several lists, also as copies of the same
            content.
        source_size: Total size of the source files in bytes.
        size: Total size of the prepared files in bytes.
        seconds: Duration of this run in seconds.
    """

    keys: dict[str, str | int]
    videos: int
    lists: dict[str, int]
    from_earlier_runs: int
    unreadable: Sequence[dict[str, str]]
    overlaps: Sequence[str]
    source_size: int
    size: int
    seconds: float


def prepare(
    lists: Sequence[VideoList],
    out: Path,
    *,
    short_side: int = 256,
    fps: float | None = None,
    limits: ReadingLimits = LIMITS,
    workers: int | None = None,
    separator: str = " ",
    classes: Sequence[str] = (),
) -> Report:
    """Prepare all videos in the lists, and write lists of the prepared files.

    Files that an earlier run prepared are kept. Unreadable videos, which include videos that exceed
    a limit, are left out of the new lists and named in unreadable.txt with the reason.

    Args:
        lists: The videos and their labels.
        out: The output folder.
        short_side: Frames with a larger short side are resized to this short side, in pixels.
        fps: Frame rate of the prepared files. By default they have the frames and times of their
            sources.
        limits: Limits on the videos that may be read.
        workers: Number of processes that encode videos. By default one per core.
        separator: The separator between path and label in the new lists.
        classes: The class names to write to classes.json. If empty, the file is not written.

    Raises:
        ValueError: `out` cannot be used, for example because another run is writing there or the
            settings differ from those of an earlier run. Also if the disk is too small, or if none
            of the videos in a list can be read.
        OSError: Writing to `out` fails, for example because the disk is full. All prepared files
            that exist are complete.
    """
    workers = available_cores() if workers is None else workers
    if workers < 1 or short_side < 16 or limits.pixels < 1:
        raise ValueError(
            f"--workers ({workers}) and --max-frame-pixels ({limits.pixels}) must be at least 1, "
            f"and --short-side ({short_side}) must be at least 16"
        )
    if fps is not None and not 0 < fps <= _MAX_FPS:
        raise ValueError(f"--fps is {fps:g}, but it must be above 0 and at most {_MAX_FPS}")
    out = absolute(out)
    _check_apart(lists, out)
    start = time.perf_counter()
    root = os.path.commonpath([local_form(str(videos.root)) for videos in lists])
    with nullcontext() if is_remote(out) else locked(out, "--output"):
        _claim(out, lists, {"format": TAG, "short_side": short_side, "fps": fps, "root": root})
        of_path = find_sources((video.path for listed in lists for video in listed.videos), root)
        sources = list(dict.fromkeys(of_path.values()))
        # Raise errors about paths before the long work.
        format_csv(((source.target, 0) for source in sources), separator)
        if classes:
            write_classes(classes, out)
        overlaps = [str(overlap) for overlap in list_overlaps(lists)]
        for text in overlaps:
            logger.warning("warning: %s", text)
        left = not_prepared(out, sources)
        work = partial(_prepare_one, out, short_side, fps, limits)
        try:
            reasons = _prepare_all(left, work, out, workers)
        finally:
            if not is_remote(out):
                for path in (out / "videos").rglob(f"*{TEMPORARY}"):
                    path.unlink(missing_ok=True)
        counts = _write_lists(lists, of_path, reasons, out, separator, workers)
    made = [source for source in sources if source not in reasons]
    keys: dict[str, str | int] = {"DATA.PATH_TO_DATA_DIR": str(out), "DATA.PATH_PREFIX": ""}
    if separator != " ":
        keys["DATA.PATH_LABEL_SEPARATOR"] = separator
    largest = max(label for listed in lists for _, label in listed.videos)
    return Report(
        keys=keys | {"MODEL.NUM_CLASSES": len(classes) or 1 + largest},
        videos=len(made),
        lists=counts,
        from_earlier_runs=len(sources) - len(left),
        unreadable=[{"path": s.path, "reason": reasons[s]} for s in sources if s in reasons],
        overlaps=overlaps,
        source_size=sum(source.size for source in made),
        size=prepared_size(out, made),
        seconds=time.perf_counter() - start,
    )


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
        lines += [f"{len(bad)} videos cannot be read and are left out (see unreadable.txt):"]
        lines += ["  {path}: {reason}".format(**video) for video in bad[:_MOST_REASONS]]
    keys = shlex.join(f"{part}" for pair in report.keys.items() for part in pair)
    return "\n".join([*lines, f"To train on this data set, add these keys: {keys}"])


def _check_apart(lists: Sequence[VideoList], out: Path) -> None:
    """Check that the output folder does not overlap with the original data set.

    Raises:
        ValueError: `out` is the folder of an original csv file, which would be overwritten. Or
            `out` lies in the folder of the classes, and would look like another class.
    """
    for origin in (videos.origin for videos in lists):
        if origin in (out, *out.parents) if origin.is_dir() else origin.parent == out:
            raise ValueError(
                f"--output {out} lies in the folder of the original data set. Choose another folder"
            )


def _claim(out: Path, lists: Sequence[VideoList], how: dict[str, object]) -> None:
    """Write the settings to prepared.json in `out`, or check that they equal the existing ones.

    Raises:
        ValueError: `out` was prepared with other settings, or contains a list that
            multigrid-prepare did not write.
    """
    path = out / "prepared.json"
    if path.exists():
        made = json.loads(path.read_text())
        if not as_path(made["root"]).exists():  # the sources have been moved
            made["root"] = how["root"]
        if differ := [key for key in how if made[key] != how[key]]:
            what = ", ".join(f"{key} {made[key]} (now {how[key]})" for key in differ)
            raise ValueError(
                f"{out} was prepared with {what}. Choose another folder, or pass all lists in a "
                "single command"
            )
    elif foreign := [videos.name for videos in lists if (out / videos.name).exists()]:
        raise ValueError(
            f"{out / foreign[0]} was not written by multigrid-prepare. Choose another folder"
        )
    write_text(path, json.dumps(how, indent=2) + "\n")


def _prepare_all(
    sources: Sequence[Source], work: partial[str], out: Path, workers: int
) -> dict[Source, str]:
    """Prepare the sources in random order.

    Returns:
        The reason why a source cannot be read, for each unreadable source.

    Raises:
        ValueError: After the first videos, the disk is found to be too small, or none of these
            videos can be read.
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
                reasons[source] = "crashes the process that reads the video"
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

    Args:
        done: The sources that have been processed.
        reasons: The unreadable sources among `done`, with the reasons.
        rest: The sources that have not been processed.
        out: The output folder.

    Raises:
        ValueError: None of the sources in `done` can be read, or the prepared files of `rest` are
            estimated not to fit on the disk.
    """
    made = [source for source in done if source not in reasons]
    if not made:
        raise ValueError(
            f"none of the first {len(done)} videos can be read. One of them is {done[0].path}: "
            f"{reasons[done[0]]}. Check the lists and --prefix"
        )
    if is_remote(out):
        return
    free = shutil.disk_usage(out).free
    share = sum(source.size for source in rest) / max(1, sum(source.size for source in made))
    size = share * prepared_size(out, made)
    if size > _SAFETY * free:
        raise ValueError(
            f"the remaining {len(rest):,} videos will need about {_size(size)}, but only "
            f"{_size(free)} are free on the disk of {out}. Free some space and repeat the command"
        )


def _prepare_one(
    out: Path, short_side: int, fps: float | None, limits: ReadingLimits, source: Source
) -> str:
    """Prepare one video. This function runs in a worker process.

    Returns:
        The reason why the source cannot be read, or an empty string.

    Raises:
        OSError: The prepared file cannot be written.
    """
    target = out / source.target
    try:
        scanned = scan(source.path, limits)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_prepared(
            source.path,
            scanned,
            target,
            short_side=short_side,
            fps=fps,
            limits=limits,
            modified=source.modified,
        )
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
    of_path: dict[str, Source],
    reasons: dict[Source, str],
    out: Path,
    separator: str,
    workers: int,
) -> dict[str, int]:
    """Write the lists of prepared videos, their indexes, and unreadable.txt.

    Returns:
        The number of videos in each new list, by the name of the list.
    """
    unreadable = out / "unreadable.txt"
    unreadable.unlink(missing_ok=True)
    if reasons:
        lines = (f"{s.path}\t{' '.join(reason.split())}\n" for s, reason in reasons.items())
        write_text(unreadable, "".join(lines))
    rows = dict[str, list[tuple[str, int]]]()
    for listed in lists:
        videos = ((of_path[path], label) for path, label in listed.videos)
        rows[listed.name] = [(s.target, label) for s, label in videos if s not in reasons]
        if not rows[listed.name]:
            raise ValueError(
                f"none of the videos that {listed.origin} lists for {listed.name} can be read"
            )
    for name, made in rows.items():
        write_text(out / name, format_csv(made, separator))
    for name, made in rows.items():
        open_index(out / name, [str(out / target) for target, _ in made], workers=workers)
        if is_remote(out):
            publish_index(out / name)
    return {name: len(made) for name, made in rows.items()}


def _size(size: float) -> str:
    """Format a number of bytes with three digits and a unit, such as 1.25GB."""
    text: str = tqdm.format_sizeof(size, "B")
    return text
