"""Configs that were stored with checkpoints and results, to be compared with those of now."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import yaml

from slowfast_patches.config.keys import flatten
from slowfast_patches.config.recipe import Recipe, default_recipe

__all__ = ["differences", "keys_of", "stored_keys"]

_KNOWN_NAMES = frozenset({"MODEL.SINGLE_PATHWAY_ARCH", "MODEL.MULTI_PATHWAY_ARCH"})
"""Lists of the architectures that a version knows: they say nothing of the one that is trained."""


def keys_of(recipe: Recipe) -> dict[str, Any]:
    """The values of a config by full key, as plain data."""
    return _flat(yaml.safe_load(recipe.text))


def stored_keys(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a stored config, sections within sections, by full key.

    A key that is newer than the file is at its default, which changes nothing.
    """
    return keys_of(default_recipe()) | _flat(tree)


def differences(
    stored: Mapping[str, object],
    wanted: Mapping[str, object],
    now: str,
    ignored: Collection[str] = (),
) -> list[str]:
    """The keys whose values are others, as "KEY 1 there, 2 now"."""
    keys = sorted((stored.keys() | wanted.keys()).difference(ignored))
    values = [(key, stored.get(key, "(absent)"), wanted.get(key, "(absent)")) for key in keys]
    return [f"{key} {old} there, {new} {now}" for key, old, new in values if old != new]


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in flatten(tree) if key not in _KNOWN_NAMES}
