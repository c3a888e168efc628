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

If a video or its alignment cannot be read, the video is left out and reported. To continue an
interrupted run, repeat the command. Clips that exist are kept.

Exit status: 0 if all videos are used, 1 if a video is left out, 2 for an error, 130 for Ctrl-C.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple, TypeVar

import cv2
import numpy as np
from av.video.frame import VideoFrame
from numpy.typing import NDArray
from tqdm import tqdm

from multigrid import Window
from slowfast_patches.datasets.demo.synthetic import write_clip
from slowfast_patches.datasets.reading.errors import UnreadableVideoError, translate_decode_errors
from slowfast_patches.datasets.reading.pixels import Cropper
from slowfast_patches.datasets.reading.video_file import open_video
from slowfast_patches.utils import command_line
from slowfast_patches.utils.files import write_text
from slowfast_patches.utils.machine import available_cores
from slowfast_patches.utils.tables import format_table

FPS = 25
VOCABULARY = {
    "command": ("bin", "lay", "place", "set"),
    "color": ("blue", "green", "red", "white"),
    "preposition": ("at", "by", "in", "with"),
    "letter": tuple("abcdefghijklmnopqrstuvxyz"),  # all letters except w, which has three syllables
    "digit": ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    "adverb": ("again", "now", "please", "soon"),
}
"""Maps each of the six positions in a sentence to the words possible there, in order."""
PLACES = ("adverb", "color", "command", "digit")
CLASSES = tuple(sorted(word for place in PLACES for word in VOCABULARY[place]))
FRAMES = 20
"""Number of frames of a clip. 20 frames are 0.8 s."""
ENCODER = {"preset": "fast", "crf": "18", "x264-params": "threads=1"}

_TICKS_PER_FRAME = 25_000 // FPS
_NUM_LOOKS = 50
"""Number of videos used to find the mouth."""
_SIDE = 112 / 288
"""Default side of the square, as a fraction of the frame's height. The mouth fills half of it."""
_MIN_MOTION = 0.5
"""Minimum mean change from frame to frame around a mouth, in grey levels from 0 to 255."""

T = TypeVar("T")


class Word(NamedTuple):
    """Word of a sentence. `start` and `end` are in frames, which may be fractional."""

    text: str
    start: float
    end: float


class Sentence(NamedTuple):
    """Video of a sentence, and its six words by the keys of VOCABULARY."""

    video: Path
    words: dict[str, Word]


class Look(NamedTuple):
    """Mean picture and motion of a video, (H, W), in grey levels.

    `motion` is the mean absolute difference between consecutive frames while words are spoken,
    minus the same mean for the silence before and after.
    """

    picture: NDArray[np.float32]
    motion: NDArray[np.float32]


def read_alignment(path: Path) -> dict[str, Word]:
    """Read the six words of an .align file, by the keys of VOCABULARY.

    Raises:
        ValueError: A line is not "start end word", or the words are not those of a sentence.
    """
    words = list[Word]()
    for line in path.read_text(encoding="utf-8").splitlines():
        start, end, text = line.split()
        if text not in ("sil", "sp"):
            times = (int(ticks) / _TICKS_PER_FRAME for ticks in (start, end))
            words.append(Word(text.lower(), *times))
    sentence = dict(zip(VOCABULARY, words, strict=True))
    for place, word in sentence.items():
        if word.text not in VOCABULARY[place]:
            raise ValueError(f"{word.text!r} is not a valid {place}")
    return sentence


def decode(sentence: Sentence) -> Iterator[VideoFrame]:
    """Yield the decoded frames of a sentence's video.

    Raises:
        UnreadableVideoError: The video cannot be decoded, or does not have 25 frames a second.
    """
    with translate_decode_errors(), open_video(str(sentence.video)) as file:
        rate = float(file.stream.average_rate or file.stream.guessed_rate or FPS)
        if round(rate) != FPS:
            raise UnreadableVideoError(f"has {rate:g} frames a second instead of {FPS}")
        yield from file.container.decode(file.stream)


def look_at(sentence: Sentence) -> Look:
    """Compute the mean frame and the mean motion of the video of a sentence."""
    frames = np.stack([frame.to_ndarray(format="gray") for frame in decode(sentence)])
    changes = np.abs(np.diff(frames.astype(np.int16), axis=0))
    between = np.arange(1, len(frames))  # time of each change, in frames from the video's start
    first, *_, last = sentence.words.values()
    spoken = (first.start <= between) & (between <= last.end)
    motion, still = (
        changes[part].mean(0, dtype=np.float32) if part.any() else np.float32(0)
        for part in (spoken, ~spoken)
    )
    return Look(frames.mean(0, dtype=np.float32), np.asarray(motion - still, np.float32))


def find_mouth(motion: NDArray[np.float32], side: int) -> tuple[float, float]:
    """Return the position (x, y) with the most motion in the lower middle of the frame.

    Motion is averaged over the surroundings of a position.

    Raises:
        ValueError: There is no motion in the lower middle.
    """
    height, width = motion.shape
    top = height // 2
    left = width // 4
    smooth = cv2.GaussianBlur(motion, (0, 0), side / 8)[top:, left : width - left]
    _, most, _, (x, y) = cv2.minMaxLoc(smooth)
    if most < _MIN_MOTION:
        raise ValueError(
            "no mouth was found, because nothing moves in the lower middle of the frames. Give "
            "--mouth X Y"
        )
    return float(left + x), float(top + y)


def square_around(mouth: tuple[float, float], side: int, frame: tuple[int, int]) -> Window:
    """Return the square around the mouth, shifted if necessary to lie inside the frame."""
    left, top = (
        min(max(0.0, at - side / 2), most - side) for at, most in zip(mouth, frame, strict=True)
    )
    if min(left, top) < 0:
        raise ValueError(f"--side {side} is larger than the frames of {frame[0]}×{frame[1]} pixels")
    return Window(left, top, side, side)


def write_picture(path: Path, look: Look, mouth: tuple[float, float], square: Window) -> None:
    """Draw the motion (in red), the mouth and the square over the mean frame, as a PNG file."""
    motion = 255 * np.clip(look.motion / max(look.motion.max(), 1e-6), 0, 1)
    red = np.maximum(look.picture, motion)
    image = np.stack([look.picture, look.picture, red], 2).astype(np.uint8)
    left, top, side, _ = (round(value) for value in square)
    colour = (0, 255, 255)
    cv2.rectangle(image, (left, top), (left + side - 1, top + side - 1), colour)
    cv2.drawMarker(image, (round(mouth[0]), round(mouth[1])), colour, markerSize=9)
    path.write_bytes(cv2.imencode(".png", image)[1].tobytes())


def cut_words(output: Path, square: Window, size: int, sentence: Sentence) -> None:
    """Write the missing clips of a sentence: the frames around each word, cropped to the square."""
    paths = {place: output / clip_name(sentence, place) for place in PLACES}
    if all(path.exists() for path in paths.values()):
        return
    frames = list(decode(sentence))
    pictures = np.empty((len(frames), size, size, 3), np.uint8)
    cropper = Cropper(square, (frames[0].width, frames[0].height), size)
    for frame, picture in zip(frames, pictures, strict=True):
        cropper(frame, picture)
    for place, path in paths.items():
        word = sentence.words[place]
        first = round((word.start + word.end - FRAMES) / 2)
        shown = np.clip(np.arange(first, first + FRAMES), 0, len(pictures) - 1)
        write_clip(path, pictures[shown], FPS, ENCODER)


def clip_name(sentence: Sentence, place: str) -> str:
    return f"clips/{sentence.video.stem}_{place}.mp4"


def split(
    sentences: Sequence[Sentence], val: float, test: float, seed: int
) -> dict[str, list[Sentence]]:
    """Split sentences at random into "train", "val" and "test", which are sorted by name."""

    def key(sentence: Sentence) -> bytes:
        return hashlib.sha256(f"{seed} {sentence.video.stem}".encode()).digest()

    drawn = sorted(sentences, key=key)
    ends = np.cumsum([max(1, round(part * len(drawn))) for part in (val, test)])
    parts = {"train": drawn[ends[1] :], "val": drawn[: ends[0]], "test": drawn[ends[0] : ends[1]]}
    if not all(parts.values()):
        raise ValueError(
            f"{len(drawn)} sentences are too few for --val-fraction {val:g} and --test-fraction "
            f"{test:g}"
        )
    return {name: sorted(part, key=lambda s: s.video.stem) for name, part in parts.items()}


def attempt(function: Callable[[Sentence], T], sentence: Sentence) -> T | UnreadableVideoError:
    """Call a function in a worker process, and return the error of an unreadable video."""
    try:
        return function(sentence)
    except UnreadableVideoError as error:
        return error


def find_sentences(args: argparse.Namespace, left_out: dict[Path, str]) -> list[Sentence]:
    """Return the sentences that have a valid alignment. Add videos without one to `left_out`."""
    sentences = list[Sentence]()
    for video in sorted(args.videos.glob("*.mpg")):
        path = args.alignments / f"{video.stem}.align"
        try:
            sentences.append(Sentence(video, read_alignment(path)))
        except (OSError, ValueError) as error:
            left_out[video] = f"{path}: {error}"
    if len(sentences) <= len(left_out):
        raise ValueError(
            f"--videos {args.videos} has {len(sentences)} .mpg files with a valid alignment in "
            f"{args.alignments}. {next(iter(left_out.values()), '')}"
        )
    return sentences


def make_words(args: argparse.Namespace) -> dict[Path, str]:
    """Make the data set, and print a table of its classes.

    Args:
        args: Parsed command line.

    Returns:
        Maps the videos that are left out to the reasons.
    """
    left_out = dict[Path, str]()
    sentences = find_sentences(args, left_out)
    (args.output / "clips").mkdir(parents=True, exist_ok=True)
    context = get_context("forkserver")  # OpenCV's threads do not survive a fork.
    with ProcessPoolExecutor(args.workers, context) as pool:
        chosen = sentences[:: -(-len(sentences) // _NUM_LOOKS)]
        found = pool.map(partial(attempt, look_at), chosen)
        looks = [look for look in tqdm(found, "find mouth", disable=None) if isinstance(look, Look)]
        if not looks:
            raise ValueError(f"no video in --videos {args.videos} can be read")
        alike = [look for look in looks if look.motion.shape == looks[0].motion.shape]
        pictures, motions = zip(*alike, strict=True)
        look = Look(np.mean(pictures, 0), np.mean(motions, 0))
        height, width = look.motion.shape
        side = args.side or round(_SIDE * height / 2) * 2
        mouth = args.mouth or find_mouth(look.motion, side)
        square = square_around(mouth, side, (width, height))
        write_picture(args.output / "mouth.png", look, mouth, square)
        print(
            f"The mouth is at {mouth[0]:g} {mouth[1]:g} in frames of {width}×{height} pixels. The "
            f"side of the square is {side} pixels. See {args.output / 'mouth.png'}.\n"
        )
        cut = partial(cut_words, args.output, square, args.size)
        done = tqdm(pool.map(partial(attempt, cut), sentences), "cut", disable=None)
        failures = {
            sentence.video: failed for sentence, failed in zip(sentences, done, strict=True)
        }
    left_out |= {video: str(failed) for video, failed in failures.items() if failed}
    used = [sentence for sentence in sentences if sentence.video not in left_out]
    counts = dict[str, Counter[str]]()
    for name, part in split(used, args.val_fraction, args.test_fraction, args.seed).items():
        clips = [(clip_name(s, place), s.words[place].text) for s in part for place in PLACES]
        text = "".join(f"{path} {CLASSES.index(word)}\n" for path, word in clips)
        write_text(args.output / f"{name}.csv", text)
        counts[name] = Counter(word for _, word in clips)
    write_text(args.output / "classes.txt", "".join(f"{name}\n" for name in CLASSES))
    rows = [[name, *(str(part[name]) for part in counts.values())] for name in CLASSES]
    rows.append(["all", *(f"{part.total():,}" for part in counts.values())])
    print(format_table(["clips", *counts], rows))
    return left_out


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = partial(command_line.add_option, parser)
    add("--videos", "DIR", "folder of a speaker's .mpg files", Path, required=True)
    add("--alignments", "DIR", "folder of the speaker's .align files", Path, required=True)
    add("--output", "DIR", "folder to write to", Path, required=True)
    text = "centre of the mouth, in pixels from the upper left corner (default: found by motion)"
    parser.add_argument("--mouth", type=float, nargs=2, metavar=("X", "Y"), help=text)
    text = "side of the square around the mouth, in pixels of the video (default: 112 for 360×288)"
    add("--side", "PIXELS", text, int)
    add("--size", "PIXELS", "width and height of the clips (%(default)s)", int, 80)
    text = "fraction of the sentences for validation (%(default)s)"
    add("--val-fraction", "F", text, float, 0.05)
    add("--test-fraction", "F", "fraction of the sentences for testing (%(default)s)", float, 0.2)
    add("--seed", "N", "seed of the random split (%(default)s)", int, 0)
    add("--workers", "N", "number of processes (one per core)", int, available_cores())
    return parser.parse_args(argv)


@command_line.tool
def main(argv: list[str] | None = None) -> int:
    """Make the data set and return the exit status."""
    args = parse_args(argv)
    left_out = make_words(args)
    for path, reason in left_out.items():
        print(f"left out: {path}: {reason}")
    keys = f"DATA.PATH_TO_DATA_DIR {args.output} MODEL.NUM_CLASSES {len(CLASSES)}"
    print(f"\nTo train on these clips, use the config keys {keys}")
    return 1 if left_out else 0


if __name__ == "__main__":
    sys.exit(main())
