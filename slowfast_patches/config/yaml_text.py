"""YAML with bounds: texts that would harm are refused before they are composed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

__all__ = ["dump_yaml", "flatten", "parse_yaml"]

# Ten times as fast where PyYAML has its C library, as its wheels do.
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SafeDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

_DEEPEST = 250
"""Levels of a YAML text: more than Python takes on a command line, which is 200."""
_LONGEST = 200_000
"""Nodes and characters of a YAML text whose aliases are written out."""


def parse_yaml(text: str, source: str = "the config") -> Any:
    """What a YAML text holds; nothing in it is executed.

    Raises:
        ValueError: it is not YAML, has a key twice in one mapping, is nested too deeply, or is too
            long once its aliases are written out; the message has `source` and the line.
    """
    try:
        _check_events(text)
        return yaml.load(text, _Loader)
    except Exception as error:  # PyYAML raises anything for a tag that does not fit its value
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise ValueError(f"{source}{line}: this is not valid YAML: {problem}") from error


class _Loader(_SafeLoader):  # type: ignore[misc]
    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        known = set[str]()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in known:
                raise _error(f"the key {key.value} is given twice", key)
            known.add(str(key.value))
        return super().construct_mapping(node, deep)


def _check_events(text: str) -> None:
    """Refuse by its events what must not be composed: that recurses in libyaml, without a bound."""
    length = 0.0
    lengths = dict[str | None, float]()
    opened = list[
        tuple[str | None, float]
    ]()  # the anchors of open collections, and where each began
    for event in yaml.parse(text, _SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            length += lengths.get(event.anchor, 0)
        elif isinstance(event, yaml.ScalarEvent):
            lengths[event.anchor] = 1 + len(event.value)
            length += lengths[event.anchor]
        elif isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, length))
            length += 1
            lengths[event.anchor] = math.inf  # an alias to what is open would have no end
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, start = opened.pop()
            lengths[anchor] = length - start
        if len(opened) > _DEEPEST:
            raise _error(f"it is nested more than {_DEEPEST} levels deep", event)
        if length > _LONGEST:
            raise _error(f"with aliases written out it is longer than {_LONGEST:,}", event)


def _error(problem: str, where: Any) -> Exception:
    error: Exception = yaml.MarkedYAMLError(problem=problem, problem_mark=where.start_mark)
    return error


def dump_yaml(tree: Mapping[str, Any]) -> str:
    """A tree of plain data as YAML, its keys in alphabetical order."""
    text: str = yaml.dump(tree, Dumper=_SafeDumper)
    return text


def flatten(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of sections within sections as (full key, value); HF.CONFIG is one value."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and key != "HF.CONFIG":
            yield from flatten(value, f"{key}.")
        else:
            yield key, value
