"""Make a data set of clips of a mouth saying one of 22 words, from a speaker of the GRID corpus.

1. Find the mouth in some of the videos by its motion while words are spoken.
2. Write a clip of each of four words of each sentence: 20 frames around the middle of the word,
   cropped to a square around the mouth.
3. Write the lists of training, validation and test clips. All clips of a sentence are in the same
   list.

Interruptions and the number of processes do not change the clips.
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
from slowfast_patches.datasets.reading.unreadable import UnreadableVideoError
from slowfast_patches.utils.files import write_text
from slowfast_patches.utils.lock import locked
from slowfast_patches.utils.machine import available_cores
from slowfast_patches.utils.processes import WorkerCrashed, run_each
from slowfast_patches.utils.tables import format_table, shorten_list

PLACES = ("adverb", "color", "command", "digit")
CLASSES = tuple(sorted(word for place in PLACES for word in VOCABULARY[place]))
FRAMES = 20
"""Number of frames of a clip. 20 frames are 0.8 s."""
MANIFEST = "words.json"
PICTURE = "mouth.png"
ENCODER = {"preset": "fast", "crf": "18", "x264-params": "threads=1"}

_NUM_LOOKS = 50
"""Number of videos used to find the mouth."""
_MAX_REASONS = 10


@dataclass(frozen=True)
class Split:
    """Random split of the sentences into training, validation and test sets.

    Attributes:
        val: Fraction of the sentences for validation.
        test: Fraction of the sentences for testing. The remaining sentences are for training.
        seed: Seed of the split.
    """

    val: float = 0.05
    test: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("val", "test"):
            if not 0 < (part := getattr(self, name)) < 1:
                raise ValueError(f"--{name}-fraction is {part:g}, but must be between 0 and 1")
        if self.val + self.test >= 1:
            raise ValueError("--val-fraction plus --test-fraction must be less than 1")

    def of(self, sentences: Sequence[Sentence]) -> dict[str, list[Sentence]]:
        """Return the sentences of each split, with keys "train", "val" and "test".

        Each split has at least one sentence.

        Raises:
            ValueError: There are too few sentences.
        """
        drawn = sorted(sentences, key=self._sort_key)
        val, test = (max(1, round(part * len(drawn))) for part in (self.val, self.test))
        if val + test >= len(drawn):
            raise ValueError(
                f"only {len(drawn)} sentences can be used, which is too few for a training, a "
                "validation and a test set. Give more videos"
            )
        parts = {"train": drawn[val + test :], "val": drawn[:val], "test": drawn[val : val + test]}
        return {name: sorted(part, key=lambda s: s.name) for name, part in parts.items()}

    def _sort_key(self, sentence: Sentence) -> bytes:
        return hashlib.sha256(f"{self.seed} {sentence.name}".encode()).digest()


@dataclass(frozen=True)
class SpeakerReport:
    """Result of `make_words`.

    Attributes:
        folder: Folder of the data set.
        square: Square that was cut out of the frames.
        counts: Maps the name of each split to a dict from class name to number of clips.
        new: Number of sentences whose clips were written by this run.
        left_out: Videos that were left out.
    """

    folder: Path
    square: Square
    counts: dict[str, dict[str, int]]
    new: int
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
    """Make the data set of a speaker, or complete it if a previous run was interrupted.

    Existing clips are kept. The lists are written last.

    Args:
        videos: Folder of the speaker's .mpg files.
        alignments: Folder of the speaker's .align files.
        output: Folder to write to.
        mouth: Centre (x, y) of the mouth, in pixels of the frame. None means to find the mouth by
            its motion.
        side: Side of the square around the mouth, in pixels of the frame. None means 112 for a
            frame height of 288 pixels, and in proportion for other heights.
        size: Width and height of the clips, in pixels.
        split: Split of the sentences. None means the default `Split()`.
        workers: Number of processes. None means one per core.

    Raises:
        ValueError: There are no usable videos, the mouth is not found, the square does not fit into
            the frame, or `output` contains another data set.
        OSError: A file in `output` cannot be written.
    """
    workers = available_cores() if workers is None else workers
    split = split or Split()
    if workers < 1:
        raise ValueError(f"--workers is {workers}, but must be at least 1")
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
    """Format a report as text.

    The text contains the number of clips per class, the position of the mouth, the videos that were
    left out, and the config keys to train on the data set.
    """
    rows = [[name, *(str(part[name]) for part in report.counts.values())] for name in CLASSES]
    rows.append(["all", *(f"{sum(part.values()):,}" for part in report.counts.values())])
    square = report.square
    clips = sum(sum(part.values()) for part in report.counts.values())
    parts = [
        format_table(["clips", *report.counts], rows),
        f"The mouth is at {square.x:g} {square.y:g} in frames of {square.width}×{square.height} "
        f"pixels. The side of the square is {square.side} pixels. See {report.folder / PICTURE}.",
        f"{report.folder} has {clips:,} clips of {clips // len(PLACES):,} sentences. This run "
        f"wrote the clips of {report.new:,} sentences.",
    ]
    if bad := report.left_out:
        lines = [f"{len(bad)} videos are left out:"]
        lines += [f"  {path}: {reason}" for path, reason in bad[:_MAX_REASONS]]
        if more := bad[_MAX_REASONS:]:
            lines.append(f"  and {shorten_list([Path(path).name for path, _ in more])}")
        parts.append("\n".join(lines))
    keys = f"DATA.PATH_TO_DATA_DIR {report.folder} MODEL.NUM_CLASSES {len(CLASSES)}"
    return "\n\n".join([*parts, f"To train on these clips, use the config keys {keys}"])


def _earlier_square(
    output: Path,
    sources: dict[str, str],
    mouth: tuple[float, float] | None,
    side: int | None,
    size: int,
) -> Square | None:
    """Return the square of the data set in `output`, or None if there is no data set.

    Raises:
        ValueError: The data set in `output` was made with other arguments or by another program.
    """
    manifest = output / MANIFEST
    if not manifest.exists():
        for name in ("clips", "train.csv", "val.csv", "test.csv"):
            if (output / name).exists():
                raise ValueError(
                    f"--output {output} contains {name}, which was not made by this program. "
                    "Choose another folder"
                )
        return None
    found: dict[str, Any] = json.loads(manifest.read_text(encoding="utf-8"))
    x, y = mouth or (None, None)
    now = {**sources, "x": x, "y": y, "side": side, "size": size}
    other = [key for key, value in now.items() if value not in (None, found.get(key))]
    if other:
        what = ", ".join(f"{key} {found.get(key)} (now {now[key]})" for key in other)
        raise ValueError(
            f"--output {output} was made with {what}. Use the same values, or choose another folder"
        )
    return Square(**{key: value for key, value in found.items() if key not in sources})


def _look(sentences: Sequence[Sentence], workers: int) -> Look:
    """Return the average of `look_at` over at most 50 videos.

    Videos whose frames have another size than those of the first video are left out.

    Raises:
        ValueError: None of these videos can be read.
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
                why = "crashes the decoder" if isinstance(look, WorkerCrashed) else look
                reasons.append(f"{sentence.video}: {why}")
            bar.update()
    if not looks:
        raise ValueError(
            f"none of the {len(chosen)} videos used to find the mouth can be read. The first "
            f"one is {reasons[0]}"
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
    """Write the clips of each sentence that lacks clips in the output folder.

    Returns:
        (number of sentences, videos). The number counts sentences whose clips were written. The
        videos are those that could not be read.
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
                why = "crashes the decoder" if isinstance(failed, WorkerCrashed) else failed
                unreadable.append((str(sentence.video), why))
            bar.update()
    return len(wanted) - len(unreadable), sorted(unreadable)


def _cut_words(output: Path, square: Square, sentence: Sentence) -> str | None:
    """Write the clips of a sentence. This is called in worker processes.

    Returns:
        None, or the reason why the video cannot be read.

    Raises:
        OSError: A clip cannot be written.
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
        except OSError as error:  # PyAV exceptions cannot be pickled, so re-raise as OSError.
            raise OSError(error.errno, error.strerror, str(path)) from None
    return None


def _clip(sentence: Sentence, place: str) -> str:
    return f"clips/{sentence.name}_{place}.mp4"


def _write_list(output: Path, name: str, sentences: Sequence[Sentence]) -> dict[str, int]:
    """Write the list of the split `name`, and return the number of clips of each class."""
    counts = dict.fromkeys(CLASSES, 0)
    lines = list[str]()
    for sentence in sentences:
        for place in PLACES:
            word = sentence.word(place).text
            lines.append(f"{_clip(sentence, place)} {CLASSES.index(word)}\n")
            counts[word] += 1
    write_text(output / f"{name}.csv", "".join(lines))
    return counts
