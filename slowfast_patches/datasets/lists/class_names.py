"""Names of classes by number, from the files in which data sets and users have them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slowfast_patches.datasets.lists.csv_list import read_utf8

__all__ = ["in_order", "named_classes", "read_class_names"]


def named_classes(folder: Path) -> tuple[str, ...] | None:
    """From `folder`/classes.json, as multigrid-prepare writes it, or classes.txt, as
    multigrid-demo-data does; None where there is neither. Raises as `read_class_names`."""
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
        is_json = path.suffix.lower() == ".json"
        names: Any = [line.strip() for line in text.rstrip().splitlines()]
        if is_json:
            names = json.loads(text, object_pairs_hook=lambda pairs: in_order(path, pairs))
    except OSError as error:
        raise ValueError(f"the class names {path} cannot be read: {error}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{path} is neither a list of names nor a mapping from name to number")
    return in_order(path, [(name, number) for number, name in enumerate(names)])


def in_order(path: Path, classes: Sequence[tuple[str, object]]) -> tuple[str, ...]:
    """The names of some (name, number), which SSv2 writes as text, in the order of their numbers.

    Raises:
        ValueError: there is none, one is empty or there twice, or they are not numbered from 0.
    """
    numbers = [int(n) if isinstance(n, str) and n.isdecimal() else n for _, n in classes]
    if not classes or any(number not in numbers for number in range(len(classes))):
        last = len(classes) - 1
        raise ValueError(f"{path}: its classes do not have the numbers 0 to {last}, each once")
    names = tuple(classes[numbers.index(number)][0] for number in range(len(classes)))
    for name, count in Counter(names).items():
        if count > 1 or not name.strip():
            raise ValueError(f"{path}: {name!r} is the name of {count} classes")
    return names
