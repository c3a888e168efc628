"""Reading and writing of YAML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from slowfast_patches.utils.errors import mistake_in

# Use the C library if PyYAML was built with it, because it is ten times as fast.
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SafeDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Loader(_SafeLoader):  # type: ignore[misc]
    """Loader that refuses a mapping with the same key twice. PyYAML would take the last value."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [key.value for key, _ in node.value]
        if repeated := {key for key in keys if keys.count(key) > 1}:
            raise yaml.MarkedYAMLError(
                problem=f"the key {repeated.pop()} is given twice", problem_mark=node.start_mark
            )
        return super().construct_mapping(node, deep)


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
        return yaml.load(text, _Loader)


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
