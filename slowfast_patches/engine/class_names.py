"""Names of classes: those that a data set has, and those in a file that a user gives."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from fvcore.common.config import CfgNode

from slowfast_patches.datasets.lists import class_names

__all__ = ["names_of_data", "read_class_names"]

logger = logging.getLogger(__name__)


def names_of_data(cfg: CfgNode) -> tuple[str, ...] | None:
    """Names by class number that a data set has beside its lists; None, with a warning, where they
    are not those of MODEL.NUM_CLASSES classes, and None where it has none."""
    try:
        return class_names(cfg)
    except ValueError as error:
        logger.warning("classes are shown by their number: %s", error)
        return None


def read_class_names(path: Path, count: int) -> tuple[str, ...]:
    """Names by class number, from a JSON list of them, a JSON mapping from name to number, or a
    text with a name a line, the first being that of class 0.

    Raises:
        ValueError: no such file, none of these, or not the names of `count` classes.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the class names {path} cannot be read: {error}") from error
    is_json = path.suffix.lower() == ".json"
    names = _parse_json(path, text) if is_json else text.rstrip().splitlines()
    if len(names) != count:
        raise ValueError(f"{path} has {len(names)} names, and the model has {count} classes")
    names = [name.strip() for name in names]
    if "" in names:
        raise ValueError(f"{path}: class {names.index('')} has an empty name")
    return tuple(names)


def _parse_json(path: Path, text: str) -> list[str]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if isinstance(content, dict):
        return _in_order(path, content)
    if isinstance(content, list) and all(isinstance(name, str) for name in content):
        return content
    raise ValueError(f"{path} is neither a list of names nor a mapping from name to number")


def _in_order(path: Path, numbers: Mapping[str, object]) -> list[str]:
    """The names in the order of their numbers, which SSv2 writes as texts."""
    named: dict[int, str] = {}
    for name, number in numbers.items():
        if isinstance(number, str) and number.isdecimal():
            number = int(number)
        if type(number) is not int or number in named or not 0 <= number < len(numbers):
            raise ValueError(
                f"{path}: {name!r} has number {number!r}; {len(numbers)} classes are numbered from "
                f"0 to {len(numbers) - 1}, each once"
            )
        named[number] = name
    return [named[number] for number in range(len(named))]
