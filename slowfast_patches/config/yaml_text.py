"""Reading and writing of YAML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from slowfast_patches.seams import MAPPINGS
from slowfast_patches.utils.errors import mistake_in

# Use the C library if PyYAML was built with it, because it is ten times as fast.
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SafeDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


_OLD_NUMBER = re.compile(r"[-+]?(0[0-9_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")
"""Matches what only YAML 1.1 takes for a number: 010 is 8, and 1:30 is 90."""
_MOST_NODES = 100_000
"""Maximum number of values in a text, where each use of an alias counts again."""


class _Loader(_SafeLoader):  # type: ignore[misc]
    """Loader that refuses likely mistakes.

    These are a key that occurs twice in a mapping, where PyYAML would use the last value, and
    numbers that YAML 1.1 reads as other numbers.
    """

    def construct_number(self, node: Any) -> Any:
        if _OLD_NUMBER.fullmatch(node.value):
            raise yaml.MarkedYAMLError(
                problem=f"{node.value} has another value in YAML 1.1. Write a decimal number, or "
                "put a text in quotes",
                problem_mark=node.start_mark,
            )
        kind = "float" if node.tag.endswith(":float") else "int"
        return getattr(self, f"construct_yaml_{kind}")(node)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        if not isinstance(node, yaml.MappingNode):
            problem = "expected a mapping"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        keys = [key.value for key, _ in node.value]
        if repeated := {key for key in keys if keys.count(key) > 1}:
            raise yaml.MarkedYAMLError(
                problem=f"the key {repeated.pop()} is given twice", problem_mark=node.start_mark
            )
        return super().construct_mapping(node, deep)


for kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{kind}", _Loader.construct_number)


def _check_size(text: str) -> None:
    """Raise an error if aliases make a text huge."""
    sizes = dict[str, int]()  # of collections by anchor
    opened = list[tuple[str | None, int]]()  # anchor and number of values before each collection
    total = 0
    for event in yaml.parse(text, _SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            total += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent):
            total += 1
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, total))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            if anchor is not None:
                sizes[anchor] = total - before + 1
        if total > _MOST_NODES:
            raise yaml.YAMLError(f"it has more than {_MOST_NODES:,} values, with all its aliases")


def parse_yaml(text: str, source: str = "the config") -> Any:
    """Parse YAML safely.

    Args:
        text: YAML text.
        source: Origin of the text, for error messages.

    Raises:
        ValueError: The text is not valid YAML, or has the same key twice in a mapping.
    """
    wrong = (yaml.YAMLError, ValueError, TypeError, RecursionError)
    with mistake_in(f"{source} is not valid YAML", *wrong):
        if "&" in text:
            _check_size(text)
        return yaml.load(text, _Loader)


def dump_yaml(tree: Mapping[str, Any]) -> str:
    """Return nested mappings of plain data as YAML, with sorted keys."""
    text: str = yaml.dump(tree, Dumper=_SafeDumper)
    return text


def flatten(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (full key, value) for each key of nested sections.

    A mapping in `MAPPINGS` is a value, not a section.
    """
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and key not in MAPPINGS:
            yield from flatten(value, f"{key}.")
        else:
            yield key, value
