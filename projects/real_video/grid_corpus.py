"""The GRID corpus as it is downloaded: sentences, each a video and its words' times.

Cooke, Barker, Cunningham, Shao: "An audio-visual corpus for speech perception and automatic speech
recognition", JASA 2006. Before a fixed camera, each speaker says 1,000 sentences of six words:

    bbaf2n.mpg      75 frames of 360×288 pixels, 25 a second: "bin blue at f two now"
    bbaf2n.align    "start end word" a line, in 1/25,000 s; `sil` at the ends, `sp` between words
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from av.video.frame import VideoFrame

from slowfast_patches.datasets.lists.csv_list import read_utf8
from slowfast_patches.datasets.reading.files import open_video, translate_decode_errors
from slowfast_patches.datasets.reading.video_record import UnreadableVideoError
from slowfast_patches.utils.tables import format_list

__all__ = [
    "FPS",
    "VOCABULARY",
    "LeftOut",
    "Sentence",
    "Word",
    "decode",
    "find_sentences",
    "read_alignment",
]

FPS = 25
VOCABULARY = {
    "command": ("bin", "lay", "place", "set"),
    "color": ("blue", "green", "red", "white"),
    "preposition": ("at", "by", "in", "with"),
    "letter": tuple("abcdefghijklmnopqrstuvxyz"),  # all that have one syllable
    "digit": ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    "adverb": ("again", "now", "please", "soon"),
}
"""The words that can be at each place of a sentence, in the order of the places."""
_TICKS = 25_000 // FPS
"""Of an alignment's clock in a frame."""
_PAUSES = ("sil", "sp")

LeftOut = list[tuple[str, str]]
"""(video, the reason why it is not used)."""


@dataclass(frozen=True)
class Word:
    """A word of a sentence, and when it is said, in frames from the start of the video."""

    text: str
    start: float
    end: float


@dataclass(frozen=True)
class Sentence:
    """A video, and its six words in the order of VOCABULARY's places."""

    video: Path
    words: tuple[Word, ...]
    length: float
    """In frames, by the alignment."""

    @property
    def name(self) -> str:
        """As bbaf2n, which spells the words."""
        return self.video.stem

    def word(self, place: str) -> Word:
        """The word at one of VOCABULARY's places."""
        return self.words[list(VOCABULARY).index(place)]


def find_sentences(videos: Path, alignments: Path) -> tuple[list[Sentence], LeftOut]:
    """The sentences of the .mpg files in a folder, in the order of their names, by the .align files
    of these names in the other; and the videos that have none, or one that is not understood.

    Raises:
        ValueError: no such folder, no videos, or more than half of them have no good alignment.
    """
    for option, folder in (("--videos", videos), ("--alignments", alignments)):
        if not folder.is_dir():
            raise ValueError(f"{option} {folder}: no such folder")
    paths = sorted(videos.glob("*.mpg"))
    sentences = list[Sentence]()
    left_out = LeftOut()
    if not paths:
        raise ValueError(f"--videos {videos}: no .mpg files in it; give a speaker's folder, as s1")
    for path in paths:
        alignment = alignments / f"{path.stem}.align"
        try:
            if not alignment.is_file():
                raise ValueError(f"there is no {alignment}")
            sentences.append(Sentence(path, *read_alignment(alignment)))
        except ValueError as error:
            left_out.append((str(path), str(error)))
    if len(left_out) > len(sentences):
        raise ValueError(
            f"{len(left_out)} of {len(paths)} videos in {videos} have no good alignment, the first "
            f"{Path(left_out[0][0]).name}: {left_out[0][1]}; --alignments is the same speaker's"
        )
    return sentences, left_out


def read_alignment(path: Path) -> tuple[tuple[Word, ...], float]:
    """The six words of an alignment, and when it ends, in frames.

    Raises:
        ValueError: a line that is no "start end word", times that do not ascend, or other words
            than a sentence has at its six places; with file and line.
    """
    words = list[Word]()
    now = 0.0
    for number, line in enumerate(read_utf8(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            word = _read_line(line)
            if word.start < now:
                raise ValueError(f"{line.strip()!r} begins before the line above ends")
            now = word.end
            if word.text not in _PAUSES:
                _check_place(word, len(words))
                words.append(word)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    if len(words) < len(VOCABULARY):
        raise ValueError(f"{path}: {len(words)} words, a sentence has {len(VOCABULARY)}")
    return tuple(words), now


def _read_line(line: str) -> Word:
    parts = line.split()
    times = [int(part) for part in parts[:-1] if part.isdecimal()]
    if len(parts) != 3 or len(times) != 2 or times[1] < times[0]:
        raise ValueError(f"{line.strip()!r:.100} is no 'start end word' with times in 1/25,000 s")
    return Word(parts[2].lower(), *(time / _TICKS for time in times))


def _check_place(word: Word, place: int) -> None:
    if place >= len(VOCABULARY):
        raise ValueError(f"{word.text!r} is one word more than a sentence has")
    name, words = list(VOCABULARY.items())[place]
    if word.text not in words:
        raise ValueError(f"{word.text!r} is no {name} ({format_list(words, 'or')})")


def decode(sentence: Sentence) -> Iterator[VideoFrame]:
    """The frames of a sentence's video, of one size.

    Raises:
        UnreadableVideoError: it does not decode, has another frame rate, or another length than its
            alignment.
    """
    count = 0
    size = None
    with translate_decode_errors(), open_video(str(sentence.video)) as (container, stream):
        rate = float(stream.average_rate or stream.guessed_rate or FPS)
        if round(rate) != FPS:
            raise UnreadableVideoError(f"has {rate:g} frames a second, not {FPS}")
        for frame in container.decode(stream):
            if (frame.width, frame.height) != (size := size or (frame.width, frame.height)):
                raise UnreadableVideoError("has frames of several sizes")
            count += 1
            yield frame
    # By far: the alignments end some frames before the videos do, and videos may lack some.
    if not count / 2 < sentence.length < count * 2:
        said = f"has {count} frames, and its alignment ends at {sentence.length:g}"
        raise UnreadableVideoError(f"{said}: times are in 1/25,000 s")
