"""Write lists with a subset of the words of make_words.py, by default the ten digits.

python benchmarks/real_video/subset.py --words data/words --output data/digits
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from slowfast_patches.datasets.lists.class_names import named_classes
from slowfast_patches.datasets.lists.csv_list import read_csv
from slowfast_patches.utils.command_line import tool
from slowfast_patches.utils.files import write_text

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
"""Names of the ten digits. The index of a name is its label."""


def make_subset(
    words: Path, folder: Path, classes: Sequence[str] = DIGITS, most: int | None = None
) -> None:
    """Write the lists of the clips of some classes, and classes.txt, to a folder.

    Args:
        words: Output folder of make_words.py.
        folder: Folder to write to. It is created if it does not exist.
        classes: Names of the classes. The index of a name is its new label.
        most: Maximum number of training clips per class. The first clips in the list are used. None
            means all clips.

    Raises:
        ValueError: `words` has no lists or no classes.txt, or a class has no training clip.
    """
    names = named_classes(words)
    if names is None:
        raise ValueError(f"--words {words} has no classes.txt. Give the output of make_words.py")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "classes.txt", "".join(f"{name}\n" for name in classes))
    for split in ("train", "val", "test"):
        clips = [(video.path, names[video.label]) for video in read_csv(words / f"{split}.csv")]
        kept = list[tuple[str, str]]()
        for word in classes:
            found = [pair for pair in clips if pair[1] == word]
            if split == "train" and not found:
                raise ValueError(f"{words}/train.csv has no clip of {word}")
            kept += found[: most if split == "train" else None]
        lines = (f"{os.path.abspath(p)} {classes.index(w)}\n" for p, w in sorted(kept))
        write_text(folder / f"{split}.csv", "".join(lines))


@tool
def main(argv: list[str] | None = None) -> int:
    """Write the lists and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    text = "output folder of make_words.py"
    parser.add_argument("--words", type=Path, required=True, metavar="DIR", help=text)
    text = "folder to write to"
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help=text)
    text = "words to keep (default: the ten digits)"
    parser.add_argument("--classes", nargs="+", default=DIGITS, metavar="WORD", help=text)
    text = "maximum number of training clips per class (default: all)"
    parser.add_argument("--most", type=int, metavar="N", help=text)
    args = parser.parse_args(argv)
    make_subset(args.words, args.output, args.classes, args.most)
    return 0


if __name__ == "__main__":
    sys.exit(main())
