"""Read class names, ordered by class number, from the files of data sets and users."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slowfast_patches.datasets.lists.csv_list import read_utf8


def named_classes(folder: Path) -> tuple[str, ...] | None:
    """Read the class names in `folder`/classes.json or classes.txt.

    multigrid-prepare writes the first, and multigrid-demo-data the second.

    Returns:
        The names, or None if neither file exists.

    Raises:
        ValueError: As for `read_class_names`.
    """
    paths = (folder / name for name in ("classes.json", "classes.txt"))
    return next((read_class_names(path) for path in paths if path.is_file()), None)


def read_class_names(path: Path) -> tuple[str, ...]:
    """Read class names from a file.

    The file is a JSON list of names, a JSON object from name to number, or a text file with one
    name per line. In lists, the first name is that of class 0.

    Raises:
        ValueError: The file is missing or has another form, or a name is empty or occurs twice.
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
    """Return the names of the classes in the order of their numbers.

    Args:
        path: The file to name in error messages.
        classes: The number of each class by its name. Numbers may be strings.

    Raises:
        ValueError: There is no class, a name is empty, or the numbers are not 0, 1, 2 and so on.
    """
    names = {str(number): name for name, number in classes.items()}
    numbers = [str(number) for number in range(len(classes))]
    if not numbers or set(names) != set(numbers) or not all(map(str.strip, classes)):
        raise ValueError(
            f"{path}: give each class a name of its own and a number from 0 to {len(numbers) - 1}"
        )
    return tuple(names[number] for number in numbers)


def read_json(path: Path, kind: Any) -> Any:
    """Read a JSON file.

    Raises:
        ValueError: The file is missing, is not JSON, or its content is not of type `kind`.
    """
    try:
        content = json.loads(read_utf8(path))
    except (OSError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(content, kind):
        raise ValueError(
            f"{path} has a {type(content).__name__} at the top level, but another type is expected"
        )
    return content
