"""Lists of the ten digits among the words, a small set.

python projects/real_video/digits.py --words data/words --output data/digits
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from slowfast_patches.datasets.lists.class_names import named_classes
from slowfast_patches.datasets.lists.csv_list import read_csv
from slowfast_patches.utils.command_line import tool
from slowfast_patches.utils.files import write_text
from slowfast_patches.utils.tables import first_few

__all__ = ["DIGITS", "make_digits"]

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
"""Each at the place of its label."""


def make_digits(words: Path, folder: Path) -> None:
    """Write lists of the clips in `words` that show digits, and the classes' names, to `folder`.

    Raises:
        ValueError: `words` is no folder of lists with names of classes, there is a digit that it
            has no clip of to train on, or `folder` has the digits of other words.
    """
    names = named_classes(words)
    if names is None:
        raise ValueError(
            f"{words} has no classes.txt, which says what the words are; give --words the folder "
            "that make_words.py has filled"
        )
    files = {"classes.txt": "".join(f"{name}\n" for name in DIGITS)}
    for split in ("train", "val", "test"):
        path = words / f"{split}.csv"
        clips = [(v.path, names[v.label]) for v in read_csv(path, num_classes=len(names))]
        missing = [digit for digit in DIGITS if digit not in {word for _, word in clips}]
        if missing and split == "train":
            raise ValueError(f"{path} has no clip of {first_few(missing)}; all ten are needed")
        lines = (f"{os.path.abspath(p)} {DIGITS.index(w)}\n" for p, w in clips if w in DIGITS)
        files[path.name] = "".join(lines)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / name
        if not path.exists():
            write_text(path, text)
        elif path.read_text(encoding="utf-8") != text:
            raise ValueError(f"{path} is of other words than {words}; choose another --output")


@tool()
def main(argv: list[str] | None = None) -> int:
    """Write the lists; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--words", type=Path, required=True, metavar="DIR")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    args = parser.parse_args(argv)
    make_digits(args.words, args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
