"""Reading and writing of YAML. Limits on depth and aliases protect against hostile files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

# Use the C library if PyYAML was built with it, because it is ten times as fast.
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SafeDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

_DEEPEST = 250
"""Maximum nesting depth of a YAML text. Python literals have at most 200 levels, so they fit."""
_MOST_ALIASES = 20
"""Maximum number of aliases. Each may double the length of a text when it is expanded."""


def parse_yaml(text: str, source: str = "the config") -> Any:
    """Parse YAML safely.

    Args:
        text: YAML text.
        source: Origin of the text, for error messages.

    Raises:
        ValueError: The text is not valid YAML, has the same key twice in a mapping, is nested too
            deeply, contains itself, or has too many aliases.
    """
    try:
        _check_events(text)
        tree = yaml.load(text, _Loader)
        json.dumps(tree, default=str)  # This raises an error if a part contains itself.
        return tree
    except Exception as error:  # PyYAML raises many exception types if a tag and a value differ.
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
    """Check the depth and the aliases of a YAML text before it is parsed to a tree.

    This prevents a stack overflow: libyaml parses nested nodes recursively, without a limit.

    Raises:
        yaml.MarkedYAMLError: The text is nested too deeply or has too many aliases.
    """
    depth = aliases = 0
    for event in yaml.parse(text, _SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        aliases += isinstance(event, yaml.AliasEvent)
        if depth > _DEEPEST:
            raise _error(f"it is nested more than {_DEEPEST} levels deep", event)
        if aliases > _MOST_ALIASES:
            raise _error(f"it has more than {_MOST_ALIASES} aliases", event)


def _error(problem: str, where: Any) -> Exception:
    error: Exception = yaml.MarkedYAMLError(problem=problem, problem_mark=where.start_mark)
    return error


def dump_yaml(tree: Mapping[str, Any]) -> str:
    """Return nested mappings of plain data as YAML, with sorted keys."""
    text: str = yaml.dump(tree, Dumper=_SafeDumper)
    return text


def flatten(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (full key, value) for each key of nested sections.

    The mapping HF.CONFIG is a value, not a section.
    """
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and key != "HF.CONFIG":
            yield from flatten(value, f"{key}.")
        else:
            yield key, value
