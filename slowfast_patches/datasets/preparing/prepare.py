"""Prepare a data set: encode all its videos in a form from which clips are read faster.

1. Collect the videos of all lists. A video in several lists is prepared once.
2. Keep the prepared files of earlier runs whose source has not changed since.
3. Encode the other videos in random order, in several processes. Report unreadable videos.
4. After the first videos, estimate the total size. Stop if the disk is too small.
5. When all videos are prepared, write all new lists together, and then their indexes.

The output folder contains the prepared files in videos/, the settings in prepared.json, the record
of the sources in sources.jsonl, and the new lists. A run holds the lock run.lock in the output
folder, so that no other run can write there.
"""

from __future__ import annotations

import logging
import math
import os
import random
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import av
from tqdm import tqdm

from slowfast_patches.datasets.lists.overlaps import find_overlaps
from slowfast_patches.datasets.preparing.encode import write_prepared
from slowfast_patches.datasets.preparing.output_folder import (
    check_origins,
    claim,
    new_rows,
    write_lists,
    write_reasons,
)
from slowfast_patches.datasets.preparing.quality import CRF, MAX_CRF
from slowfast_patches.datasets.preparing.sources import (
    Recorder,
    Source,
    check_apart,
    find_sources,
    local_form,
    not_prepared,
    recorded,
)
from slowfast_patches.datasets.preparing.video_lists import VideoList, format_csv
from slowfast_patches.datasets.reading.index import open_index, publish_index
from slowfast_patches.datasets.reading.prepared import TAG
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError
from slowfast_patches.utils.errors import UserError, writing
from slowfast_patches.utils.files import TEMPORARY
from slowfast_patches.utils.lock import locked
from slowfast_patches.utils.processes import WorkerCrashed, run_each
from slowfast_patches.utils.storage import absolute, is_remote

logger = logging.getLogger(__name__)

_MOST_REASONS = 10
_SAMPLE = 8
_SAFETY = 1.1
"""Stop only if the estimated size exceeds this multiple of the free disk space."""
MIN_SHORT_SIDE = 16
"""Minimum of `short_side` in pixels, the size of a macroblock of H.264."""
MAX_FPS = 1000.0
"""Maximum of `fps`. Higher rates would write the same frames many times."""


@dataclass(frozen=True)
class PreparationReport:
    """Results of a run.

    Attributes:
        keys: Configuration keys for training on the data set.
        lists: Maps the name of each new list to its number of videos.
        kept: Number of prepared files that an earlier run had written.
        unreadable: Maps the path of each video that is left out to the reason.
    """

    keys: Mapping[str, str | int]
    lists: Mapping[str, int]
    kept: int
    unreadable: Mapping[str, str]

    def __str__(self) -> str:
        lines = [f"{name}: {count} videos" for name, count in self.lists.items()]
        lines.append(f"videos that an earlier run had prepared: {self.kept}")
        if count := len(self.unreadable):
            lines.append(f"{count} videos cannot be read and are left out (see unreadable.txt):")
            named = islice(self.unreadable.items(), _MOST_REASONS)
            lines += [f"  {path}: {reason}" for path, reason in named]
        keys = shlex.join(str(part) for pair in self.keys.items() for part in pair)
        return "\n".join([*lines, f"To train on this data set, add these keys: {keys}"])


def prepare(
    lists: Sequence[VideoList],
    out: Path,
    *,
    workers: int,
    short_side: int = 256,
    fps: float | None = None,
    crf: float = CRF,
    separator: str = " ",
    classes: Sequence[str] = (),
) -> PreparationReport:
    """Prepare all videos in the lists, and write lists of the prepared files.

    Files that an earlier run prepared are kept. Unreadable videos are left out of the new lists and
    named in unreadable.txt with the reason.

    Args:
        lists: The videos and their labels.
        out: The output folder.
        workers: Number of processes that encode videos.
        short_side: Frames with a larger short side are resized to this short side, in pixels.
        fps: Frame rate of the prepared files. By default they have the frames and times of their
            sources.
        crf: Constant rate factor of x264, from 0 (lossless) to 51.
        separator: The separator between path and label in the new lists.
        classes: The class names to write to classes.json. If empty, the file is not written.

    Raises:
        ValueError: An argument is out of range, or `out` cannot be used, for example because it
            contains the sources, another run is writing there, or the settings differ from those of
            an earlier run. Also if the disk is too small, or if none of the videos in a list can be
            read. All lists are then unchanged.
        OSError: Writing to `out` fails, for example because the disk is full. All prepared files
            that exist are complete.
    """
    _check_numbers(workers, short_side, fps, crf)
    out = absolute(out)
    check_origins(lists, out)
    root = os.path.commonpath([local_form(str(videos.root)) for videos in lists])
    of_path = find_sources((video.path for listed in lists for video in listed.videos), root)
    sources = list(dict.fromkeys(of_path.values()))
    check_apart(out, sources)
    # Raise errors about paths before the long work.
    format_csv(((source.target, 0) for source in sources), separator)
    with nullcontext() if is_remote(out) else locked(out, "--output"):
        settings = {
            "format": TAG,
            "short_side": short_side,
            "fps": fps,
            "crf": crf,
            "root": root,
        }
        claim(out, lists, sources, settings)
        of_split = {listed.name.removesuffix(".csv"): listed.videos for listed in lists}
        for overlap in find_overlaps(of_split):
            logger.warning("warning: %s", overlap)
        left = not_prepared(out, sources)
        try:
            with recorded(out) as recorder:
                work = partial(_prepare_one, out, short_side, fps, crf)
                reasons = _prepare_all(left, work, out, workers, recorder)
        finally:
            if not is_remote(out):
                for path in (out / "videos").rglob(f"*{TEMPORARY}"):
                    path.unlink(missing_ok=True)
        write_reasons(out, reasons)
        made = {path: source.target for path, source in of_path.items() if source not in reasons}
        rows = new_rows(lists, made, classes)
        write_lists(rows, out, separator, classes)
        for name, videos in rows.items():
            open_index(out / name, [str(out / target) for target, _ in videos], workers=workers)
            if is_remote(out):
                publish_index(out / name)
    counts = {name: len(videos) for name, videos in rows.items()}
    keys: dict[str, str | int] = {"DATA.PATH_TO_DATA_DIR": str(out), "DATA.PATH_PREFIX": ""}
    if separator != " ":
        keys["DATA.PATH_LABEL_SEPARATOR"] = separator
    largest = max(label for listed in lists for _, label in listed.videos)
    keys["MODEL.NUM_CLASSES"] = len(classes) or 1 + largest
    unreadable = {source.path: reason for source, reason in reasons.items()}
    return PreparationReport(keys, counts, len(sources) - len(left), unreadable)


def _check_numbers(workers: int, short_side: int, fps: float | None, crf: float) -> None:
    """Check the numbers of a command.

    Raises:
        ValueError: A number is out of range.
    """
    if workers < 1:
        raise UserError(f"--workers is {workers}, but must be at least 1")
    if short_side < MIN_SHORT_SIDE:
        raise UserError(
            f"--short-side is {short_side} pixels, but must be at least {MIN_SHORT_SIDE}"
        )
    if fps is not None and not (math.isfinite(fps) and 0 < fps <= MAX_FPS):
        raise UserError(f"--fps is {fps:g}, but must be above 0 and at most {MAX_FPS:g}")
    if not 0 <= crf <= MAX_CRF:
        raise UserError(f"--crf is {crf:g}, but must be from 0 to {MAX_CRF}")


def _prepare_all(
    sources: Sequence[Source],
    work: Callable[[Source], str],
    out: Path,
    workers: int,
    recorder: Recorder,
) -> dict[Source, str]:
    """Prepare the sources in random order, and record what is prepared.

    Returns:
        The reason why a source cannot be read, for each unreadable source.

    Raises:
        ValueError: After the first videos, the disk is found to be too small, or none of these
            videos can be read.
    """
    jobs = random.Random(0).sample(sources, len(sources))
    reasons = dict[Source, str]()
    done = list[Source]()
    total = sum(source.size for source in sources)
    bar = tqdm(desc="prepare", total=total, unit="B", unit_scale=True, disable=None)
    with bar, closing(run_each(work, jobs, workers)) as outcomes:
        for source, reason in outcomes:
            done.append(source)
            if isinstance(reason, WorkerCrashed):
                reasons[source] = "crashes the process that reads the video"
            elif reason:
                reasons[source] = reason
            else:
                recorder.add(source)
            bar.update(source.size)
            if len(done) == max(_SAMPLE, 2 * workers) < len(jobs):
                _check_sample(done, reasons, total, out)
    return reasons


def _check_sample(
    done: Sequence[Source], reasons: Mapping[Source, str], total: int, out: Path
) -> None:
    """Check the first results, and estimate whether the remaining videos fit on the disk.

    Args:
        done: The sources that have been processed.
        reasons: The unreadable sources among `done`, with the reasons.
        total: Size of all sources in bytes.
        out: The output folder.

    Raises:
        ValueError: None of the sources in `done` can be read, or the other prepared files are
            estimated not to fit on the disk.
    """
    made = [source for source in done if source not in reasons]
    if not made:
        raise UserError(
            f"none of the first {len(done)} videos can be read. One of them is {done[0].path}: "
            f"{reasons[done[0]]}. Check the lists and --prefix"
        )
    if is_remote(out):
        return
    free = shutil.disk_usage(out).free
    rest = total - sum(source.size for source in done)
    prepared = sum((out / source.target).stat().st_size for source in made)
    size = rest * prepared / max(1, sum(source.size for source in made))
    if size > _SAFETY * free:
        raise UserError(
            f"the remaining videos will need about {size / 1e9:.3g} GB, but only "
            f"{free / 1e9:.3g} GB are free on the disk of {out}. Free some space and repeat the "
            "command"
        )


def _prepare_one(out: Path, short_side: int, fps: float | None, crf: float, source: Source) -> str:
    """Prepare one video. This function runs in a worker process.

    Returns:
        The reason why the source cannot be read, or an empty string.

    Raises:
        OSError: The prepared file cannot be written.
    """
    target = out / source.target
    try:
        scanned = scan(source.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_prepared(
            source.path,
            scanned,
            target,
            short_side=short_side,
            fps=fps,
            crf=crf,
            modified=source.modified,
        )
    except UnreadableVideoError as error:
        return str(error)
    except OSError as error:
        # PyAV exceptions cannot be pickled, so re-raise them as OSError.
        with writing(target):
            raise OSError(error.errno, error.strerror, str(target)) from None
    except av.FFmpegError as error:
        return f"cannot be encoded: {type(error).__name__}: {error}"
    return ""
