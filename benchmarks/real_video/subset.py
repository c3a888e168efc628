"""Write lists with a subset of the words of make_words.py, by default the ten digits.

python benchmarks/real_video/subset.py --words data/words --output data/digits
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from slowfast_patches.datasets.lists.class_names import named_classes
from slowfast_patches.datasets.lists.csv_list import read_csv
from slowfast_patches.utils.command_line import add_option, command_parser, tool
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
    parser = command_parser(__doc__ or "")
    add = partial(add_option, parser)
    add("--words", "DIR", "output folder of make_words.py", Path, required=True)
    add("--output", "DIR", "folder to write to", Path, required=True)
    text = "words to keep (default: the ten digits)"
    add("--classes", "WORD", text, default=DIGITS, nargs="+")
    add("--most", "N", "maximum number of training clips per class (default: all)", int)
    args = parser.parse_args(argv)
    make_subset(args.words, args.output, args.classes, args.most)
    return 0


if __name__ == "__main__":
    sys.exit(main())
