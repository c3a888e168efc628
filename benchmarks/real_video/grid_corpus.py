"""Reader of the GRID corpus: videos of spoken sentences, and the start and end of each word.

Cooke, Barker, Cunningham, Shao: "An audio-visual corpus for speech perception and automatic speech
recognition", JASA 2006. Each speaker says 1,000 sentences of six words in front of a fixed camera.
A sentence such as "bin blue at f two now" is downloaded as two files:

    bbaf2n.mpg      video of 75 frames of 360×288 pixels, 25 frames a second
    bbaf2n.align    alignment: one line "start end word" for each word, with times in 1/25,000 s.
                    The word `sil` is the silence at both ends, `sp` is a pause between words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from av.video.frame import VideoFrame

from slowfast_patches.datasets.lists.csv_list import read_utf8
from slowfast_patches.datasets.reading.unreadable import (
    UnreadableVideoError,
    translate_decode_errors,
)
from slowfast_patches.datasets.reading.video_file import open_video
from slowfast_patches.utils.tables import format_list

FPS = 25
VOCABULARY = {
    "command": ("bin", "lay", "place", "set"),
    "color": ("blue", "green", "red", "white"),
    "preposition": ("at", "by", "in", "with"),
    "letter": tuple("abcdefghijklmnopqrstuvxyz"),  # all letters except w, which has three syllables
    "digit": ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    "adverb": ("again", "now", "please", "soon"),
}
"""Dict from each of the six positions in a sentence to the words possible there, in order."""
_TICKS_PER_FRAME = 25_000 // FPS
"""Duration of a frame in the time unit of alignments, 1/25,000 s."""
_PAUSES = ("sil", "sp")

LeftOut = list[tuple[str, str]]
"""List of (path of a video, reason why the video is not used)."""


@dataclass(frozen=True)
class Word:
    """Word of a sentence.

    Attributes:
        text: The word.
        start: Start of the word, in frames from the start of the video. It may be fractional.
        end: End of the word, likewise.
    """

    text: str
    start: float
    end: float


@dataclass(frozen=True)
class Sentence:
    """Sentence of the corpus.

    Attributes:
        video: Path of the video.
        words: The six words, in the order of the keys of VOCABULARY.
        length: End of the alignment, in frames from the start of the video.
    """

    video: Path
    words: tuple[Word, ...]
    length: float

    @property
    def name(self) -> str:
        """File name without extension, such as bbaf2n. It consists of the initials of the words."""
        return self.video.stem

    def word(self, place: str) -> Word:
        """Return the word at a position of the sentence, given as a key of VOCABULARY."""
        return self.words[list(VOCABULARY).index(place)]


def find_sentences(videos: Path, alignments: Path) -> tuple[list[Sentence], LeftOut]:
    """Find the .mpg files in a folder, and read the .align file of each.

    Args:
        videos: Folder of the .mpg files.
        alignments: Folder of the .align files, which have the same names.

    Returns:
        (sentences, left out). The sentences are sorted by name. Videos whose alignment is missing
        or invalid are left out.

    Raises:
        ValueError: A folder does not exist, there are no videos, or more than half of the videos
            have no valid alignment.
    """
    for option, folder in (("--videos", videos), ("--alignments", alignments)):
        if not folder.is_dir():
            raise ValueError(f"{option} {folder} is not an existing folder")
    paths = sorted(videos.glob("*.mpg"))
    sentences = list[Sentence]()
    left_out = LeftOut()
    if not paths:
        raise ValueError(
            f"--videos {videos} contains no .mpg files. Give the folder of a speaker, such as s1"
        )
    for path in paths:
        alignment = alignments / f"{path.stem}.align"
        try:
            if not alignment.is_file():
                raise ValueError(f"{alignment} does not exist")
            sentences.append(Sentence(path, *read_alignment(alignment)))
        except ValueError as error:
            left_out.append((str(path), str(error)))
    if len(left_out) > len(sentences):
        raise ValueError(
            f"{len(left_out)} of {len(paths)} videos in {videos} have no valid alignment. The "
            f"first one is {Path(left_out[0][0]).name}: {left_out[0][1]}. Check that --alignments "
            "is the folder of the same speaker"
        )
    return sentences, left_out


def read_alignment(path: Path) -> tuple[tuple[Word, ...], float]:
    """Read an .align file.

    Returns:
        (words, end). `words` are the six words of the sentence. `end` is the end of the alignment,
        in frames from the start of the video.

    Raises:
        ValueError: A line is not "start end word", times do not ascend, or a word is not possible
            at its position in the sentence. The message names the file and the line.
    """
    words = list[Word]()
    now = 0.0
    for number, line in enumerate(read_utf8(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            word = _read_line(line)
            if word.start < now:
                raise ValueError(f"{line.strip()!r} begins before the previous word ends")
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
        raise ValueError(f"{word.text!r} is the seventh word, but a sentence has six")
    name, words = list(VOCABULARY.items())[place]
    if word.text not in words:
        raise ValueError(f"{word.text!r} is not a valid {name} ({format_list(words, 'or')})")


def decode(sentence: Sentence) -> Iterator[VideoFrame]:
    """Yield the decoded frames of a sentence's video.

    Raises:
        UnreadableVideoError: The video cannot be decoded, does not have 25 frames a second, has
            frames of different sizes, or is more than twice or less than half as long as the
            alignment.
    """
    count = 0
    size = None
    with translate_decode_errors(), open_video(str(sentence.video)) as file:
        stream = file.stream
        rate = float(stream.average_rate or stream.guessed_rate or FPS)
        if round(rate) != FPS:
            raise UnreadableVideoError(f"has {rate:g} frames a second instead of {FPS}")
        for frame in file.container.decode(stream):
            if (frame.width, frame.height) != (size := size or (frame.width, frame.height)):
                raise UnreadableVideoError("has frames of different sizes")
            count += 1
            yield frame
    # Alignments end some frames before their videos, so accept small differences in length.
    if not count / 2 < sentence.length < count * 2:
        lengths = f"has {count} frames, but the alignment ends at frame {sentence.length:g}"
        raise UnreadableVideoError(f"{lengths}. Times in alignments must be in 1/25,000 s")
