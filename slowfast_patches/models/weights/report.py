"""What was taken from a file of weights, what was not, and why, in a few lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slowfast_patches.models.weights.fit import Fit

__all__ = ["format_fit"]

_NAMES_SHOWN = 3

_PARTS = {
    "fast pathway": re.compile(r"s\d\.pathway1_"),
    "lateral connections": re.compile(r"s\d_fuse\."),
    "non-local blocks": re.compile(r"s\d\.pathway\d_nonlocal"),
    "head": re.compile(r"head\."),
    "other weights": re.compile(""),
}
"""Parts of a model that a file may lack, by the names of their tensors; the first that fits."""


def format_fit(fit: Fit) -> str:
    """A line of totals, then one for each group of tensors with the reason and a few names."""
    kept = len(fit.missing) + len(fit.misfit)
    lines = [
        f"{len(fit.loaded)} tensors loaded, {len(fit.partly)} partly, {kept} kept at their initial "
        f"values, {len(fit.unused)} unused in the file"
    ]
    if fit.inflated:
        lines.append(f"repeated along time: {fit.inflated} convolutions of an image model")
    if fit.partly:
        shown = _some([f"{name} ({part})" for name, part in fit.partly.items()])
        lines.append(
            f"partly, the channels of lateral connections keep their initial values: {shown}"
        )
    head = [reason for name, reason in fit.misfit.items() if _PARTS["head"].match(name)]
    lines += head[:1]
    if others := [reason for reason in fit.misfit.values() if reason not in head]:
        lines.append(f"of another shape: {_some(others, '; ')}")
    lines += _missing(fit)
    if fit.unused:
        lines.append(f"unused: {_some(fit.unused)}")
    return "\n  ".join(lines)


def _missing(fit: Fit) -> list[str]:
    where = "an image model" if fit.from_images else "the file"
    groups: dict[str, list[str]] = {part: [] for part in _PARTS}
    for name in fit.missing:
        groups[next(part for part, names in _PARTS.items() if names.match(name))].append(name)
    return [
        f"{part}: {len(names)} tensors, not in {where}: {_some(names)}"
        for part, names in groups.items()
        if names
    ]


def _some(items: Sequence[str], separator: str = ", ") -> str:
    more = len(items) - _NAMES_SHOWN
    return separator.join(items[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
