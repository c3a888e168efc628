r"""Make a data set of short clips of a mouth saying one of 22 words, from the GRID corpus.

    python benchmarks/real_video/make_words.py --videos s1 --alignments alignments/s1 --output words

The input is the .mpg files of one speaker of the corpus and the .align files of the same names
(Cooke, Barker, Cunningham, Shao: "An audio-visual corpus for speech perception and automatic speech
recognition", JASA 2006; CC BY 4.0, zenodo record 3625687). A video shows a sentence of six words in
75 frames. Its alignment has a line "start end word" for each word, with times in 1/25,000 s. The
word `sil` is the silence at both ends, `sp` is a pause between words.

The output folder DIR contains:

    DIR/clips          four clips of each sentence, one for each of the words command, color, digit
                       and adverb. A clip has 20 frames of 80×80 pixels around the mouth.
    DIR/*.csv          lists of the training, validation and test clips, in the Kinetics format. All
                       clips of a sentence are in the same list.
    DIR/classes.txt    names of the classes
    DIR/mouth.png      picture that shows where the mouth was found

The script searches for the mouth where the picture moves while words are spoken, and prints its
position. If the position is wrong, remove DIR and give --mouth. To cut out the whole face, give
--side 224 --size 144, and a --mouth about 39 pixels above the mouth.

To continue an interrupted run, repeat the command. Clips that exist are kept.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from av.video.frame import VideoFrame
from numpy.typing import NDArray
from tqdm.contrib.concurrent import thread_map

from multigrid import Window
from slowfast_patches.datasets.preparing.clip_file import write_clip
from slowfast_patches.datasets.reading.reader import Cropper
from slowfast_patches.datasets.reading.video_file import open_video
from slowfast_patches.utils import command_line
from slowfast_patches.utils.errors import UserError, mistake_in
from slowfast_patches.utils.files import write_text
from slowfast_patches.utils.machine import available_cores

FPS = 25
PLACES = {"command": 0, "color": 1, "digit": 4, "adverb": 5}
"""Maps the places of the words that are cut out to their positions in a sentence."""
CLASSES = (
    *("again", "bin", "blue", "eight", "five", "four", "green", "lay", "nine", "now", "one"),
    *("place", "please", "red", "set", "seven", "six", "soon", "three", "two", "white", "zero"),
)
FRAMES = 20
"""Number of frames of a clip. 20 frames are 0.8 s."""
ENCODER = {"preset": "fast", "crf": "18", "x264-params": "threads=1:cpu-independent=1"}

_TICKS_PER_FRAME = 25_000 // FPS
_GIVE = "Give the .align files of the GRID corpus as --alignments."
_NUM_LOOKS = 50
"""Number of videos used to find the mouth."""
_SIDE = 112 / 288
"""Default side of the square, as a fraction of the frame's height. The mouth fills half of it."""
_FRACTIONS = (0.05, 0.2)
"""Fractions of the sentences for validation and testing."""


class Word(NamedTuple):
    """Word of a sentence. `start` and `end` are in frames, which may be fractional."""

    text: str
    start: float
    end: float


class Sentence(NamedTuple):
    """Video of a sentence and its six words."""

    video: Path
    words: Sequence[Word]

    def clip(self, place: str) -> str:
        """Return the path of a clip, relative to the output folder."""
        return f"clips/{self.video.stem}_{place}.mp4"


def read_sentence(video: Path, alignments: Path) -> Sentence:
    """Read the alignment of a video.

    Raises:
        UserError: The alignment is missing or not one of the corpus: a line is not "start end
            word", the times do not increase, there are not six words, or a word that is cut out is
            unknown.
    """
    path = alignments / f"{video.stem}.align"
    with mistake_in(f"the alignment of {video} cannot be read", OSError, UnicodeDecodeError):
        lines = path.read_text(encoding="utf-8").splitlines()
    parts = [_read_part(f"{path}, line {number}", line) for number, line in enumerate(lines, 1)]
    words = [word for word in parts if word.text not in ("sil", "sp")]
    times = [time for word in words for time in (word.start, word.end)]
    if times != sorted(times):
        raise UserError(f"{path}: the words overlap, or are not in the order of time. {_GIVE}")
    if len(words) != 6:
        raise UserError(f"{path} has {len(words)} words, but a sentence has six. {_GIVE}")
    for place, number in PLACES.items():
        if (text := words[number].text) not in CLASSES:
            raise UserError(f"{path}: the word {text!r} is no {place} of the corpus. {_GIVE}")
    return Sentence(video, words)


def _read_part(where: str, line: str) -> Word:
    """Read a line "start end word" of an alignment."""
    match = re.fullmatch(r"(\d+) (\d+) (\S+)", line.strip(), re.ASCII)
    if match is None or int(match[1]) > int(match[2]):
        raise UserError(f'{where}: expected "start end word" with times, not {line!r:.80}. {_GIVE}')
    start, end = (int(match[n]) / _TICKS_PER_FRAME for n in (1, 2))
    return Word(match[3].lower(), start, end)


def decode(video: Path) -> list[VideoFrame]:
    """Decode all frames of a video. Raise ValueError if it cannot be decoded."""
    with mistake_in(f"{video} cannot be decoded"), open_video(str(video)) as file:
        return list(file.container.decode(file.stream))


def look_at(sentence: Sentence) -> NDArray[np.float32]:
    """Return the mean frame and the motion of a video, (2, H, W), in grey levels.

    The motion is the mean absolute difference between consecutive frames while words are spoken,
    minus the same mean for the silence before and after.
    """
    frames = np.stack([frame.to_ndarray(format="gray") for frame in decode(sentence.video)])
    changes = np.abs(np.diff(frames.astype(np.int16), axis=0))
    between = np.arange(1, len(frames))  # time of each change, in frames from the video's start
    spoken = (sentence.words[0].start <= between) & (between <= sentence.words[-1].end)
    motion = changes[spoken].mean(0) - changes[~spoken].mean(0)
    return np.stack([frames.mean(0), motion]).astype(np.float32)


def find_mouth(motion: NDArray[np.float32], side: int) -> tuple[float, float]:
    """Return the position (x, y) with the most motion in the lower middle of the frame.

    Motion is averaged over the surroundings of a position.
    """
    height, width = motion.shape
    top = height // 2
    left = width // 4
    smooth = cv2.GaussianBlur(motion, (0, 0), side / 8)[top:, left : width - left]
    _, _, _, (x, y) = cv2.minMaxLoc(smooth)
    return float(left + x), float(top + y)


def square_around(mouth: tuple[float, float], side: int, frame: tuple[int, int]) -> Window:
    """Return the square around the mouth, shifted if necessary to lie inside the frame."""
    if side > min(frame):
        raise UserError(f"--side {side} is larger than the frames of {frame[0]}×{frame[1]} pixels")
    left, top = np.clip(np.subtract(mouth, side / 2), 0, np.subtract(frame, side)).tolist()
    return Window(left, top, side, side)


def write_picture(path: Path, look: NDArray[np.float32], square: Window) -> None:
    """Draw the motion (in red) and the square over the mean frame, as a PNG file."""
    picture, motion = look
    red = np.maximum(picture, motion * (255 / max(motion.max(), 1e-6)))
    image = np.stack([picture, picture, red], 2).clip(0, 255).astype(np.uint8)
    left, top, side, _ = (round(value) for value in square)
    cv2.rectangle(image, (left, top), (left + side - 1, top + side - 1), (0, 255, 255))
    cv2.imwrite(str(path), image)


def cut_words(output: Path, square: Window, size: int, sentence: Sentence) -> None:
    """Write the missing clips of a sentence: the frames around each word, cropped to the square."""
    paths = [output / sentence.clip(place) for place in PLACES]
    if all(map(Path.exists, paths)):
        return
    frames = decode(sentence.video)
    pictures = np.empty((len(frames), size, size, 3), np.uint8)
    cropper = Cropper(square, (frames[0].width, frames[0].height), size)
    for frame, picture in zip(frames, pictures, strict=True):
        cropper(frame, picture)
    for path, number in zip(paths, PLACES.values(), strict=True):
        word = sentence.words[number]
        first = round((word.start + word.end - FRAMES) / 2)
        shown = np.clip(np.arange(first, first + FRAMES), 0, len(pictures) - 1)
        write_clip(path, pictures[shown], FPS, ENCODER)


def split(sentences: Sequence[Sentence], seed: int) -> dict[str, list[Sentence]]:
    """Split sentences at random into "train", "val" and "test", which are sorted by name."""

    def key(sentence: Sentence) -> bytes:
        return hashlib.sha256(f"{seed} {sentence.video.stem}".encode()).digest()

    drawn = sorted(sentences, key=key)
    ends = np.cumsum([max(1, round(part * len(drawn))) for part in _FRACTIONS])
    parts = {"train": drawn[ends[1] :], "val": drawn[: ends[0]], "test": drawn[ends[0] : ends[1]]}
    return {name: sorted(part, key=lambda s: s.video.stem) for name, part in parts.items()}


def make_words(args: argparse.Namespace) -> None:
    """Make the data set.

    Args:
        args: Parsed command line.

    Raises:
        UserError: There are no videos, or an alignment is invalid.
    """
    run = partial(thread_map, max_workers=available_cores(), disable=None)
    videos = sorted(args.videos.glob("*.mpg"))
    if not videos:
        raise UserError(f"--videos {args.videos} has no .mpg files")
    sentences = [read_sentence(video, args.alignments) for video in videos]
    (args.output / "clips").mkdir(parents=True, exist_ok=True)
    chosen = sentences[:: -(-len(sentences) // _NUM_LOOKS)]
    look = np.mean(run(look_at, chosen, desc="find mouth"), 0)
    height, width = look.shape[1:]
    side = args.side or round(_SIDE * height / 2) * 2
    x, y = args.mouth or find_mouth(look[1], side)
    square = square_around((x, y), side, (width, height))
    write_picture(args.output / "mouth.png", look, square)
    print(
        f"The mouth is at {x:g} {y:g} in frames of {width}×{height} pixels. The side of the square "
        f"is {side} pixels. See {args.output / 'mouth.png'}."
    )
    run(partial(cut_words, args.output, square, args.size), sentences, desc="cut")
    for name, part in split(sentences, args.seed).items():
        lines = [
            f"{sentence.clip(place)} {CLASSES.index(sentence.words[number].text)}\n"
            for sentence in part
            for place, number in sorted(PLACES.items())
        ]
        write_text(args.output / f"{name}.csv", "".join(lines))
        print(f"{name}: {len(lines):,} clips")
    write_text(args.output / "classes.txt", "".join(f"{name}\n" for name in CLASSES))


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = command_line.command_parser(__doc__ or "")
    add = partial(command_line.add_option, parser)
    add("--videos", "DIR", "folder of a speaker's .mpg files", Path, required=True)
    add("--alignments", "DIR", "folder of the speaker's .align files", Path, required=True)
    add("--output", "DIR", "folder to write to", Path, required=True)
    text = "centre of the mouth, in pixels from the upper left corner (default: found by motion)"
    parser.add_argument("--mouth", type=float, nargs=2, metavar=("X", "Y"), help=text)
    text = "side of the square around the mouth, in pixels of the video (default: 112 for 360×288)"
    add("--side", "PIXELS", text, int)
    add("--size", "PIXELS", "width and height of the clips (%(default)s)", int, 80)
    add("--seed", "N", "seed of the random split (%(default)s)", int, 0)
    return parser.parse_args(argv)


@command_line.tool
def main(argv: list[str] | None = None) -> int:
    """Make the data set and return the exit status."""
    args = parse_args(argv)
    make_words(args)
    keys = f"DATA.PATH_TO_DATA_DIR {args.output} MODEL.NUM_CLASSES {len(CLASSES)}"
    print(f"To train on these clips, use the config keys {keys}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
