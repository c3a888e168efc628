"""Read class names in the order of the class indices."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slowfast_patches.datasets.lists.csv_list import read_utf8, split_lines
from slowfast_patches.utils.errors import UserError, mistake_in


def named_classes(folder: Path) -> tuple[str, ...] | None:
    """Read the class names from classes.json or classes.txt in a folder.

    multigrid-prepare writes classes.json.

    Returns:
        The names in the order of the class indices, or None if neither file exists.

    Raises:
        ValueError: As for `read_class_names`.
    """
    paths = (folder / name for name in ("classes.json", "classes.txt"))
    return next((read_class_names(path) for path in paths if path.is_file()), None)


def read_class_names(path: Path) -> tuple[str, ...]:
    """Read class names from a file.

    The file is a JSON list of names, a JSON object that maps names to class indices, or a text file
    with one name per line. The first name of a list or text file belongs to class 0.

    Returns:
        The names in the order of the class indices.

    Raises:
        ValueError: The file is missing or has another format, or a name is empty or occurs twice.
    """
    if path.suffix.lower() == ".json":
        names = read_json(path, list | dict)
    else:
        names = [line.strip() for line in split_lines(read_utf8(path).rstrip())]
    if isinstance(names, list):
        names = {name if isinstance(name, str) else "": n for n, name in enumerate(names)}
    return in_order(path, names)


def in_order(path: Path, classes: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names of the classes in the order of the class indices.

    Args:
        path: The file to name in error messages.
        classes: Maps the name of a class to the class index, which may be a string.

    Raises:
        ValueError: There are no classes, a name is empty, or the indices are not 0, 1, 2 and so on.
    """
    names = {str(number): name for name, number in classes.items() if name.strip()}
    numbers = [str(number) for number in range(max(1, len(classes)))]
    if names.keys() != set(numbers):
        raise UserError(
            f"{path}: each class must have a distinct name and a distinct index from 0 to "
            f"{len(numbers) - 1}"
        )
    return tuple(map(names.__getitem__, numbers))


def read_json(path: Path, kind: Any) -> Any:
    """Read a JSON file.

    Raises:
        ValueError: The file is missing or not JSON, an object has a name twice, or the top-level
            value is not of type `kind`.
    """
    text = read_utf8(path)
    with mistake_in(f"{path} cannot be read as JSON", ValueError, RecursionError):
        content = json.loads(text, object_pairs_hook=_unique)
    if not isinstance(content, kind):
        raise UserError(
            f"{path} cannot be read as JSON: the top-level value is a {type(content).__name__}"
        )
    return content


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a dict of the pairs in a JSON object. Python would keep the last of equal names."""
    content = dict(pairs)
    if len(content) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise UserError(f"an object has the name {name!r} twice")
    return content
