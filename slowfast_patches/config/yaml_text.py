"""YAML with bounds: texts that would harm are refused before they are composed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

__all__ = ["dump_yaml", "flatten", "parse_yaml"]

_LOADER, _DUMPER = (
    getattr(yaml, f"C{name}", getattr(yaml, name)) for name in ("SafeLoader", "SafeDumper")
)
"""Ten times as fast where PyYAML has its C library, as its wheels do."""

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
        return yaml.load(text, _LOADER)
    except Exception as error:  # PyYAML raises anything for a tag that does not fit its value
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise ValueError(f"{source}{line}: this is not valid YAML: {problem}") from error


@dataclass
class _Collection:
    """A sequence or mapping that is still open; `start` is the length of the text before it."""

    anchor: str | None = None
    start: float = 0
    is_mapping: bool = False
    children: int = 0
    keys: set[str] = field(default_factory=set)

    def has_twice(self, scalar: str | None) -> bool:
        """Count a child; whether it is a key that this mapping has already."""
        self.children += 1
        if not self.is_mapping or self.children % 2 == 0 or scalar is None:
            return False
        known = scalar in self.keys
        self.keys.add(scalar)
        return known


def _check_events(text: str) -> None:
    """Refuse by its events what must not be composed: that recurses in libyaml, without a bound."""
    length = 0.0
    lengths = dict[str | None, float]()
    opened = [_Collection()]
    for event in yaml.parse(text, _LOADER):
        problem = None
        if isinstance(event, yaml.CollectionEndEvent):
            done = opened.pop()
            lengths[done.anchor] = length - done.start
        elif isinstance(event, yaml.NodeEvent):
            scalar = event.value if isinstance(event, yaml.ScalarEvent) else None
            if opened[-1].has_twice(scalar):
                problem = f"the key {scalar} is given twice"
            is_alias = isinstance(event, yaml.AliasEvent)
            before = length
            length += lengths.get(event.anchor, 0) if is_alias else 1 + len(scalar or "")
            lengths[event.anchor] = length - before
            if isinstance(event, yaml.CollectionStartEvent):
                is_mapping = isinstance(event, yaml.MappingStartEvent)
                opened.append(_Collection(event.anchor, before, is_mapping))
                lengths[event.anchor] = math.inf  # an alias to what is open would have no end
        if len(opened) > _DEEPEST:
            problem = f"it is nested more than {_DEEPEST} levels deep"
        if length > _LONGEST:
            problem = f"with its aliases written out it is longer than {_LONGEST:,} characters"
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def dump_yaml(tree: Mapping[str, Any]) -> str:
    """A tree of plain data as YAML, its keys in alphabetical order."""
    text: str = yaml.dump(tree, Dumper=_DUMPER)
    return text


def flatten(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of sections within sections as (full key, value); HF.CONFIG is one value."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and key != "HF.CONFIG":
            yield from flatten(value, f"{key}.")
        else:
            yield key, value
