"""The ten digits among the words: lists of their clips alone, a small set."""

from __future__ import annotations

import os
from pathlib import Path

from slowfast_patches.datasets.lists.class_names import named_classes
from slowfast_patches.datasets.lists.csv_list import read_csv
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
            "that tools/make_words.py has filled"
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
