"""Names of classes by number, from the files in which data sets and users have them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from slowfast_patches.datasets.lists.csv_list import read_utf8

__all__ = ["in_order", "named_classes", "read_class_names"]


def named_classes(folder: Path) -> tuple[str, ...] | None:
    """From `folder`/classes.json, as tools/prepare_data.py writes it, or classes.txt, as
    tools/make_demo_data.py does; None where there is neither. Raises as `read_class_names`."""
    paths = (folder / name for name in ("classes.json", "classes.txt"))
    return next((read_class_names(path) for path in paths if path.is_file()), None)


def read_class_names(path: Path) -> tuple[str, ...]:
    """From a JSON list of names, a JSON mapping from name to number, or a text with a name a line,
    the first being that of class 0.

    Raises:
        ValueError: no such file, none of these, an empty name, or one that is there twice.
    """
    try:
        text = read_utf8(path)
    except OSError as error:
        raise ValueError(f"the class names {path} cannot be read: {error}") from error
    lines = [line.strip() for line in text.rstrip().splitlines()]
    names = _parse_json(path, text) if path.suffix.lower() == ".json" else lines
    return in_order(path, [(name, number) for number, name in enumerate(names)])


def _parse_json(path: Path, text: str) -> Sequence[str]:
    try:
        content = json.loads(text, object_pairs_hook=lambda pairs: in_order(path, pairs))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if isinstance(content, list | tuple) and all(isinstance(name, str) for name in content):
        return content
    raise ValueError(f"{path} is neither a list of names nor a mapping from name to number")


def in_order(path: Path, classes: Sequence[tuple[str, object]]) -> tuple[str, ...]:
    """The names of some (name, number), which SSv2 writes as text, in the order of their numbers.

    Raises:
        ValueError: there is none, one is empty or there twice, or they are not numbered from 0.
    """
    named, last = dict[int, str](), len(classes) - 1
    if not classes:
        raise ValueError(f"{path} names no class")
    for name, number in classes:
        if isinstance(number, str) and number.isdecimal():
            number = int(number)
        if type(number) is not int or number in named or not 0 <= number <= last:
            said = f"{len(classes)} classes are numbered from 0 to {last}, each once"
            raise ValueError(f"{path}: {name!r} has number {number!r}; {said}")
        if not name.strip():
            raise ValueError(f"{path}: class {number} has an empty name")
        if name in named.values():
            first = next(n for n, other in named.items() if other == name)
            raise ValueError(f"{path}: {name!r} is the name of two classes, {first} and {number}")
        named[number] = name
    return tuple(named[number] for number in range(len(named)))
