"""Make a data set of short clips of a mouth saying one of 22 words, from the GRID corpus.

    python benchmarks/real_video/make_words.py --videos s1 --alignments alignments/s1 --output words

The input is the .mpg files of one speaker of the corpus and the .align files of the same names
(Cooke, Barker, Cunningham, Shao: "An audio-visual corpus for speech perception and automatic speech
recognition", JASA 2006; CC BY 4.0, zenodo record 3625687).

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

If a video cannot be read, or its alignment is missing or invalid, the video is left out and
reported. To continue an interrupted run, repeat the command.

Exit status: 0 if all videos are used, 1 if a video is left out, 2 for an error, 130 for Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mouth import Square
from words import Split, format_report, make_words

from slowfast_patches.utils import command_line


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--videos", type=Path, required=True, metavar="DIR", help="folder of a speaker's .mpg files"
    )
    text = "folder of the same speaker's .align files"
    add("--alignments", type=Path, required=True, metavar="DIR", help=text)
    add("--output", type=Path, required=True, metavar="DIR", help="folder to write to")
    text = (
        "centre of the mouth, in pixels from the upper left corner of the frame (default: found by "
        "motion)"
    )
    add("--mouth", type=float, nargs=2, metavar=("X", "Y"), help=text)
    text = (
        "side of the square around the mouth, in pixels of the video (default: 112 for frames of "
        "360×288)"
    )
    add("--side", type=int, metavar="PIXELS", help=text)
    text = "width and height of the clips (default: %(default)s)"
    add("--size", type=int, default=Square.size, metavar="PIXELS", help=text)
    text = "fraction of the sentences for validation (default: %(default)s)"
    add("--val-fraction", type=float, default=Split.val, metavar="F", help=text)
    text = "fraction of the sentences for testing (default: %(default)s)"
    add("--test-fraction", type=float, default=Split.test, metavar="F", help=text)
    text = "seed of the random split (default: %(default)s)"
    add("--seed", type=int, default=Split.seed, metavar="N", help=text)
    add("--workers", type=int, metavar="N", help="number of processes (default: one per core)")
    return parser.parse_args(argv)


@command_line.tool(interrupted="interrupted. To continue, repeat the command")
def main(argv: list[str] | None = None) -> int:
    """Make the data set and return the exit status."""
    args = parse_args(argv)
    report = make_words(
        args.videos,
        args.alignments,
        args.output,
        mouth=None if args.mouth is None else tuple(args.mouth),
        side=args.side,
        size=args.size,
        split=Split(args.val_fraction, args.test_fraction, args.seed),
        workers=args.workers,
    )
    print(format_report(report))
    return 1 if report.left_out else 0


if __name__ == "__main__":
    sys.exit(main())
