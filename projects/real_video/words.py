"""Make a data set of clips of a mouth saying one of 22 words, from a speaker of the GRID corpus.

1. Find the mouth: in some of the videos, locate what moves while words are spoken.
2. Cut four words of each sentence: 20 frames around a word's middle, a square around the mouth.
3. Write the lists, split by sentence.

A clip depends only on its video, its alignment and the position of the mouth. It depends neither on
interruptions nor on the number of processes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from grid_corpus import (
    FPS,
    VOCABULARY,
    LeftOut,
    Sentence,
    find_sentences,
)
from mouth import Look, Square, find_square, look_at, write_picture
from tqdm import tqdm

from slowfast_patches.datasets.demo.synthetic import write_clip
from slowfast_patches.datasets.reading.video_record import UnreadableVideoError
from slowfast_patches.utils.files import write_text
from slowfast_patches.utils.lock import locked
from slowfast_patches.utils.machine import available_cores
from slowfast_patches.utils.processes import WorkerCrashed, run_each
from slowfast_patches.utils.tables import format_table, shorten_list

PLACES = ("adverb", "color", "command", "digit")
CLASSES = tuple(sorted(word for place in PLACES for word in VOCABULARY[place]))
FRAMES = 20
"""Frames of a clip, 0.8 s."""
MANIFEST = "words.json"
PICTURE = "mouth.png"
ENCODER = {"preset": "fast", "crf": "18", "x264-params": "threads=1"}

_NUM_LOOKS = 50
"""Number of videos used to find the mouth."""
_MAX_REASONS = 10


@dataclass(frozen=True)
class Split:
    """Shares of the sentences for validation and testing; the others are for training."""

    val: float = 0.05
    test: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("val", "test"):
            if not 0 < (part := getattr(self, name)) < 1:
                raise ValueError(f"--{name}-fraction is {part:g}: give a number between 0 and 1")
        if self.val + self.test >= 1:
            raise ValueError("--val-fraction and --test-fraction leave nothing to train on")

    def of(self, sentences: Sequence[Sentence]) -> dict[str, list[Sentence]]:
        """Divide sentences into train, val and test, with at least one in each.

        Raises:
            ValueError: there are too few sentences.
        """
        drawn = sorted(sentences, key=self._sort_key)
        val, test = (max(1, round(part * len(drawn))) for part in (self.val, self.test))
        if val + test >= len(drawn):
            raise ValueError(
                f"only {len(drawn)} sentences can be used, too few to split in three. Give more "
                "videos"
            )
        parts = {"train": drawn[val + test :], "val": drawn[:val], "test": drawn[val : val + test]}
        return {name: sorted(part, key=lambda s: s.name) for name, part in parts.items()}

    def _sort_key(self, sentence: Sentence) -> bytes:
        return hashlib.sha256(f"{self.seed} {sentence.name}".encode()).digest()


@dataclass(frozen=True)
class SpeakerReport:
    """Result of `make_words`."""

    folder: Path
    square: Square
    counts: dict[str, dict[str, int]]
    """Number of clips of each class, by split."""
    new: int
    """Number of sentences cut by this run."""
    left_out: LeftOut


def make_words(
    videos: Path,
    alignments: Path,
    output: Path,
    *,
    mouth: tuple[float, float] | None = None,
    side: int | None = None,
    size: int = Square.size,
    split: Split | None = None,
    workers: int | None = None,
) -> SpeakerReport:
    """Make or complete the data set of a speaker.

    Existing clips are kept, so that an interrupted run continues. The lists are written last.

    Args:
        videos: folder of the speaker's .mpg files.
        alignments: folder of the speaker's .align files.
        output: folder to write to.
        mouth: centre (x, y) of the mouth, in pixels of the frame. If None, it is found by motion.
        side: side of the square around the mouth, in pixels of the frame. If None, it is a fixed
            share of the frame's height.
        size: side of the clips, in pixels.
        split: shares of the sentences for validation and testing.
        workers: number of processes. None means one per core.

    Raises:
        ValueError: there are no usable videos, the mouth is not found, the square does not fit, or
            `output` contains another data set.
        OSError: `output` cannot be written.
    """
    workers = available_cores() if workers is None else workers
    split = split or Split()
    if workers < 1:
        raise ValueError(f"--workers is {workers}: give 1 or more")
    sources = {"videos": os.path.abspath(videos), "alignments": os.path.abspath(alignments)}
    sentences, left_out = find_sentences(videos, alignments)
    others = workers if workers > 1 else 0
    with locked(output, "--output"):
        square = _earlier_square(output, sources, mouth, side, size)
        if square is None:
            looks = _look(sentences, others)
            square = find_square(looks, mouth, side, size)
            write_picture(output / PICTURE, looks, square)
            write_text(output / MANIFEST, json.dumps({**sources, **asdict(square)}) + "\n")
        new, unreadable = _cut_all(sentences, output, square, others)
        bad = {path for path, _ in unreadable}
        used = split.of([s for s in sentences if str(s.video) not in bad])
        counts = {name: _write_list(output, name, part) for name, part in used.items()}
        write_text(output / "classes.txt", "".join(f"{name}\n" for name in CLASSES))
    return SpeakerReport(output, square, counts, new, left_out + unreadable)


def format_report(report: SpeakerReport) -> str:
    """Format a report: numbers of clips, the mouth, videos left out, and keys for training."""
    rows = [[name, *(str(part[name]) for part in report.counts.values())] for name in CLASSES]
    rows.append(["all", *(f"{sum(part.values()):,}" for part in report.counts.values())])
    square = report.square
    clips = sum(sum(part.values()) for part in report.counts.values())
    parts = [
        format_table(["clips", *report.counts], rows),
        f"mouth: {square.x:g} {square.y:g}, side {square.side}, in frames of "
        f"{square.width}×{square.height} pixels; see {report.folder / PICTURE}",
        f"{report.folder}: {clips:,} clips of {clips // len(PLACES):,} sentences, "
        f"{report.new:,} of them cut now",
    ]
    if bad := report.left_out:
        lines = [f"{len(bad)} videos are left out:"]
        lines += [f"  {path}: {reason}" for path, reason in bad[:_MAX_REASONS]]
        if more := bad[_MAX_REASONS:]:
            lines.append(f"  and {shorten_list([Path(path).name for path, _ in more])}")
        parts.append("\n".join(lines))
    keys = f"DATA.PATH_TO_DATA_DIR {report.folder} MODEL.NUM_CLASSES {len(CLASSES)}"
    return "\n\n".join([*parts, f"To train on it, give: {keys}"])


def _earlier_square(
    output: Path,
    sources: dict[str, str],
    mouth: tuple[float, float] | None,
    side: int | None,
    size: int,
) -> Square | None:
    """Return the square of the data set in `output`, or None if there is no data set.

    Raises:
        ValueError: `output` was made with other arguments, or by something else.
    """
    manifest = output / MANIFEST
    if not manifest.exists():
        for name in ("clips", "train.csv", "val.csv", "test.csv"):
            if (output / name).exists():
                raise ValueError(
                    f"{output} contains {name}, which this program has not made: give another "
                    "--output"
                )
        return None
    found: dict[str, Any] = json.loads(manifest.read_text(encoding="utf-8"))
    x, y = mouth or (None, None)
    now = {**sources, "x": x, "y": y, "side": side, "size": size}
    other = [key for key, value in now.items() if value not in (None, found.get(key))]
    if other:
        what = ", ".join(f"{key} {found.get(key)} (now {now[key]})" for key in other)
        raise ValueError(f"{output} was made with {what}: give that, or another --output")
    return Square(**{key: value for key, value in found.items() if key not in sources})


def _look(sentences: Sequence[Sentence], workers: int) -> Look:
    """Average picture and motion over some videos, those with frames of the first one's size.

    Raises:
        ValueError: none of the videos can be read.
    """
    chosen = sentences[:: -(-len(sentences) // _NUM_LOOKS)]
    looks = dict[str, Look]()
    reasons = list[str]()
    with (
        tqdm(total=len(chosen), desc="find mouth", unit="video", disable=None) as bar,
        closing(run_each(_try_look, chosen, workers)) as results,
    ):
        for sentence, look in results:
            if isinstance(look, Look):
                looks[sentence.name] = look
            else:
                why = "kills the process that reads it" if isinstance(look, WorkerCrashed) else look
                reasons.append(f"{sentence.video}: {why}")
            bar.update()
    if not looks:
        raise ValueError(
            f"none of {len(chosen)} videos tried can be used. The first is {reasons[0]}"
        )
    first, *more = (looks[name] for name in sorted(looks))
    alike = [first, *(look for look in more if look.motion.shape == first.motion.shape)]
    pictures, motions = ([getattr(k, name) for k in alike] for name in ("picture", "motion"))
    return Look(np.mean(pictures, 0), np.mean(motions, 0))


def _try_look(sentence: Sentence) -> Look | str:
    try:
        return look_at(sentence)
    except UnreadableVideoError as error:
        return str(error)


def _cut_all(
    sentences: Sequence[Sentence], output: Path, square: Square, workers: int
) -> tuple[int, LeftOut]:
    """Cut the sentences that are not cut yet.

    Returns:
        The number of sentences cut, and the videos that could not be read.
    """
    (output / "clips").mkdir(exist_ok=True)
    wanted = [s for s in sentences if not all((output / _clip(s, p)).exists() for p in PLACES)]
    cut = partial(_cut_words, output, square)
    unreadable = LeftOut()
    with (
        tqdm(total=len(wanted), desc="cut", unit="sentence", disable=None) as bar,
        closing(run_each(cut, wanted, workers, jobs_per_worker=4)) as results,
    ):
        for sentence, failed in results:
            if failed is not None:
                why = (
                    "kills the process that reads it"
                    if isinstance(failed, WorkerCrashed)
                    else failed
                )
                unreadable.append((str(sentence.video), why))
            bar.update()
    return len(wanted) - len(unreadable), sorted(unreadable)


def _cut_words(output: Path, square: Square, sentence: Sentence) -> str | None:
    """Write the clips of a sentence; runs in a worker process.

    Returns:
        The reason if the video cannot be read, else None.

    Raises:
        OSError: a clip cannot be written.
    """
    try:
        pictures = square.cut(sentence)
    except UnreadableVideoError as error:
        return str(error)
    for place in PLACES:
        word = sentence.word(place)
        path = output / _clip(sentence, place)
        first = round((word.start + word.end - FRAMES) / 2)
        shown = np.clip(np.arange(first, first + FRAMES), 0, len(pictures) - 1)
        try:
            write_clip(path, pictures[shown], FPS, ENCODER)
        except OSError as error:  # PyAV's exceptions cannot be pickled
            raise OSError(error.errno, error.strerror, str(path)) from None
    return None


def _clip(sentence: Sentence, place: str) -> str:
    return f"clips/{sentence.name}_{place}.mp4"


def _write_list(output: Path, name: str, sentences: Sequence[Sentence]) -> dict[str, int]:
    """Write the list of a split and return the number of its clips of each class."""
    counts = dict.fromkeys(CLASSES, 0)
    lines = list[str]()
    for sentence in sentences:
        for place in PLACES:
            word = sentence.word(place).text
            lines.append(f"{_clip(sentence, place)} {CLASSES.index(word)}\n")
            counts[word] += 1
    write_text(output / f"{name}.csv", "".join(lines))
    return counts
