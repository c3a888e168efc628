"""Reader of the GRID corpus as downloaded: sentences, each a video and the times of its words.

Cooke, Barker, Cunningham, Shao: "An audio-visual corpus for speech perception and automatic speech
recognition", JASA 2006. Each speaker says 1,000 sentences of six words in front of a fixed camera:

    bbaf2n.mpg      75 frames of 360×288 pixels at 25 frames a second: "bin blue at f two now"
    bbaf2n.align    lines of "start end word", in 1/25,000 s; `sil` at the ends, `sp` between words
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from av.video.frame import VideoFrame

from slowfast_patches.datasets.lists.csv_list import read_utf8
from slowfast_patches.datasets.reading.containers import open_video, translate_decode_errors
from slowfast_patches.datasets.reading.video_record import UnreadableVideoError
from slowfast_patches.utils.tables import format_list

FPS = 25
VOCABULARY = {
    "command": ("bin", "lay", "place", "set"),
    "color": ("blue", "green", "red", "white"),
    "preposition": ("at", "by", "in", "with"),
    "letter": tuple("abcdefghijklmnopqrstuvxyz"),  # all that have one syllable
    "digit": ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    "adverb": ("again", "now", "please", "soon"),
}
"""Possible words at each place of a sentence, in the order of the places."""
_TICKS_PER_FRAME = 25_000 // FPS
"""Ticks of an alignment's clock per frame."""
_PAUSES = ("sil", "sp")

LeftOut = list[tuple[str, str]]
"""List of (video, the reason why it is not used)."""


@dataclass(frozen=True)
class Word:
    """Word of a sentence, with its start and end in frames from the start of the video."""

    text: str
    start: float
    end: float


@dataclass(frozen=True)
class Sentence:
    """Video of a sentence, with its six words in the order of VOCABULARY's places."""

    video: Path
    words: tuple[Word, ...]
    length: float
    """End of the alignment, in frames."""

    @property
    def name(self) -> str:
        """File name without extension, such as bbaf2n: the initials of the six words."""
        return self.video.stem

    def word(self, place: str) -> Word:
        """Return the word at one of VOCABULARY's places."""
        return self.words[list(VOCABULARY).index(place)]


def find_sentences(videos: Path, alignments: Path) -> tuple[list[Sentence], LeftOut]:
    """Find the .mpg files of a folder and read the .align files of the same names.

    Args:
        videos: folder of the .mpg files.
        alignments: folder of the .align files.

    Returns:
        The sentences, sorted by name, and the videos whose alignment is missing or invalid.

    Raises:
        ValueError: a folder does not exist, it has no videos, or more than half of the videos have
            no valid alignment.
    """
    for option, folder in (("--videos", videos), ("--alignments", alignments)):
        if not folder.is_dir():
            raise ValueError(f"{option} {folder}: no such folder")
    paths = sorted(videos.glob("*.mpg"))
    sentences = list[Sentence]()
    left_out = LeftOut()
    if not paths:
        raise ValueError(
            f"--videos {videos} has no .mpg files in it: give a speaker's folder, such as s1"
        )
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
            f"{len(left_out)} of {len(paths)} videos in {videos} have no good alignment. The first "
            f"is {Path(left_out[0][0]).name}: {left_out[0][1]}. Give the --alignments of the same "
            "speaker"
        )
    return sentences, left_out


def read_alignment(path: Path) -> tuple[tuple[Word, ...], float]:
    """Read an alignment.

    Returns:
        Its six words, and its end in frames.

    Raises:
        ValueError: a line is not "start end word", times do not ascend, or a word is not one of
            its place in the sentence. The message names the file and the line.
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
        raise ValueError(f"{path} has {len(words)} words, but a sentence has {len(VOCABULARY)}")
    return tuple(words), now


def _read_line(line: str) -> Word:
    parts = line.split()
    times = [int(part) for part in parts[:-1] if part.isdecimal()]
    if len(parts) != 3 or len(times) != 2 or times[1] < times[0]:
        raise ValueError(f"{line.strip()!r:.100} is not 'start end word' with times in 1/25,000 s")
    return Word(parts[2].lower(), *(time / _TICKS_PER_FRAME for time in times))


def _check_place(word: Word, place: int) -> None:
    if place >= len(VOCABULARY):
        raise ValueError(f"{word.text!r} is one word more than a sentence has")
    name, words = list(VOCABULARY.items())[place]
    if word.text not in words:
        raise ValueError(f"{word.text!r} is not a valid {name} ({format_list(words, 'or')})")


def decode(sentence: Sentence) -> Iterator[VideoFrame]:
    """Yield the frames of a sentence's video.

    Raises:
        UnreadableVideoError: the video cannot be decoded, has another frame rate than the corpus,
            frames of several sizes, or a very different length than its alignment.
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
    # Alignments end some frames before the videos, and videos may lack frames. Only a factor of two
    # is wrong.
    if not count / 2 < sentence.length < count * 2:
        lengths = f"has {count} frames, and its alignment ends at {sentence.length:g}"
        raise UnreadableVideoError(f"{lengths}: times must be in 1/25,000 s")
