"""Names of classes by number, from the files in which data sets and users have them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slowfast_patches.datasets.lists.csv_list import read_utf8

__all__ = ["in_order", "named_classes", "read_class_names", "read_json"]


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
    if path.suffix.lower() == ".json":
        names = read_json(path, list | dict)
    else:
        try:
            names = [line.strip() for line in read_utf8(path).rstrip().splitlines()]
        except OSError as error:
            raise ValueError(f"the class names {path} cannot be read: {error}") from error
    if isinstance(names, list):
        names = {name if isinstance(name, str) else "": n for n, name in enumerate(names)}
    return in_order(path, names)


def in_order(path: Path, classes: Mapping[str, object]) -> tuple[str, ...]:
    """Names by class number, from a mapping to numbers, which may be written as text.

    Raises:
        ValueError: there is none, one is empty, or they are not numbered from 0, each once.
    """
    names = {str(number): name for name, number in classes.items()}
    numbers = [str(number) for number in range(len(classes))]
    if not numbers or set(names) != set(numbers) or not all(map(str.strip, classes)):
        raise ValueError(
            f"{path}: give each class a name of its own and a number from 0 to {len(numbers) - 1}"
        )
    return tuple(names[number] for number in numbers)


def read_json(path: Path, kind: Any) -> Any:
    """What a JSON file holds; ValueError where it is missing, no JSON, or not of a kind."""
    try:
        content = json.loads(read_utf8(path))
    except (OSError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(content, kind):
        raise ValueError(f"{path} has a {type(content).__name__}, which does not belong there")
    return content
