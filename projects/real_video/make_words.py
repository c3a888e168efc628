"""Make a data set of short clips of a mouth saying one of 22 words, from the GRID corpus.

    python projects/real_video/make_words.py --videos s1 --alignments alignments/s1 --output words

Input: the .mpg files of a speaker and the .align files of the same names, as downloaded (Cooke,
Barker, Cunningham, Shao: "An audio-visual corpus for speech perception and automatic speech
recognition", JASA 2006; CC BY 4.0, zenodo record 3625687).

Output:

    DIR/clips          four clips of each sentence: its command, color, digit and adverb, in 20
                       frames of 80×80 pixels around the mouth
    DIR/*.csv          lists in the Kinetics format, split by sentence
    DIR/classes.txt    the names of the classes
    DIR/mouth.png      where the mouth was found

The mouth is found by what moves while words are spoken, and its position is printed. If it is
wrong, remove DIR and give --mouth. To cut the whole face, give --side 224 --size 144 and a --mouth
some 39 pixels above the mouth.

Videos are left out and reported if they cannot be read, or if their alignment is missing or
invalid. To continue an interrupted run, repeat the command.

Exit status: 0 if all videos are used, 1 if some are left out, 2 for an error, 130 for Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mouth import Square
from words import Split, format_report, make_words

from slowfast_patches.utils import command_line


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--videos", type=Path, required=True, metavar="DIR", help="folder of a speaker's .mpg files"
    )
    text = "folder of the same speaker's .align files"
    add("--alignments", type=Path, required=True, metavar="DIR", help=text)
    add("--output", type=Path, required=True, metavar="DIR", help="folder to fill")
    text = "centre of the mouth, in pixels from the frame's upper left corner (found by motion)"
    add("--mouth", type=float, nargs=2, metavar=("X", "Y"), help=text)
    text = "side of the square around the mouth (112, for frames of 360×288)"
    add("--side", type=int, metavar="PIXELS", help=text)
    text = "side of the clips (%(default)s)"
    add("--size", type=int, default=Square.size, metavar="PIXELS", help=text)
    text = "share of the sentences for validation (%(default)s)"
    add("--val-fraction", type=float, default=Split.val, metavar="F", help=text)
    text = "share of the sentences for testing (%(default)s)"
    add("--test-fraction", type=float, default=Split.test, metavar="F", help=text)
    add("--seed", type=int, default=Split.seed, metavar="N", help="seed of the split (%(default)s)")
    add("--workers", type=int, metavar="N", help="number of processes (one per core)")
    return parser.parse_args(argv)


@command_line.tool(interrupted="interrupted; the same command continues")
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
