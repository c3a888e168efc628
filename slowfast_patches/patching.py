"""The ledger of patches: every change to a package that is not ours, as a row of data.

Nothing happens on import. `apply()` installs all rows or none, `undo()` takes them back, `drift()`
names the rows whose host source is no longer the one they were written against.

Call `apply()` before the first import of `slowfast.models`, which asks for detectron2 on import.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import logging
from collections.abc import MutableMapping
from dataclasses import dataclass
from functools import reduce
from importlib import metadata
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["DETECTRON2_HINT", "PATCHES", "Patch", "applied", "apply", "drift", "undo"]

logger = logging.getLogger(__name__)

HOST = "pyslowfast"
"""The distribution whose version the rows are written for."""

DETECTRON2_HINT = (
    "detectron2, which is in no package registry. Install it from its repository, built against "
    "this torch: pip install --no-build-isolation git+https://github.com/facebookresearch/"
    "detectron2.git; or set DETECTION.ENABLE False"
)


@dataclass(frozen=True)
class Patch:
    """One row of the ledger.

    target: the entry of a mapping that is replaced, "module:attribute.path[key]"; an attribute of a
        module is "module:__dict__[name]". An entry that does not exist yet is added, and removed
        again.
    replacement: "module:attribute" of ours, imported when the row is applied.
    versions: the host's versions that the row holds for.
    reason: why there is no seam for it.
    until: when the row can go.
    source_sha256: hash of the replaced object's source; None where nothing is replaced.
    unless_installed: the import name of a package that makes the row superfluous.
    """

    target: str
    replacement: str
    versions: tuple[str, ...]
    reason: str
    until: str
    source_sha256: str | None = None
    unless_installed: str | None = None

    @property
    def needed(self) -> bool:
        """False where the package that the row stands in for is installed."""
        name = self.unless_installed
        return name is None or importlib.util.find_spec(name) is None


PATCHES: tuple[Patch, ...] = (
    Patch(
        target="sys:modules[detectron2.layers]",
        replacement="slowfast_patches.patching:DETECTRON2_LAYERS",
        versions=("1.0",),
        reason="slowfast.models.head_helper imports detectron2.layers.ROIAlign on import, whether "
        "detection is wanted or not.",
        until="the host imports detectron2 only where detection is enabled.",
        unless_installed="detectron2",
    ),
    Patch(
        target="slowfast.datasets.build:DATASET_REGISTRY._obj_map[Kinetics]",
        replacement="slowfast_patches.datasets.kinetics:Kinetics",
        versions=("1.0",),
        reason="The host registers its own Kinetics under the name that recipes ask for, and a "
        "registry takes each name once. Its clips have one shape, whatever the sampler asks for.",
        until="the host's registry lets a name be replaced.",
        source_sha256="e6cffce5b490fde54046e2497f7fb0cfa990917e9ecfff9ffe2e6c7900d779f5",
    ),
)


class ROIAlign:
    """Stands in for detectron2.layers.ROIAlign where detectron2 is not installed."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise ImportError(f"DETECTION.ENABLE True needs {DETECTRON2_HINT}.")


DETECTRON2_LAYERS = ModuleType("detectron2.layers", "A placeholder: it is not installed.")
"""Holds ROIAlign alone. The parent package stays absent, so that whoever asks whether detectron2 is
installed still gets the true answer; Python finds a submodule in sys.modules without its parent."""
DETECTRON2_LAYERS.__spec__ = ModuleSpec("detectron2.layers", None, origin=__name__)
DETECTRON2_LAYERS.__dict__["ROIAlign"] = ROIAlign

_MISSING: Any = object()

_changes: dict[str, Any] | None = None
"""What stood at each target before apply(), in order; None while nothing is applied."""


def apply() -> None:
    """Apply every row that is needed, or none; nothing where they are applied already.

    A row whose host source has drifted is applied with a warning.

    Raises:
        RuntimeError: the host's version is not one that a row holds for.
        Exception: whatever a row's import raised; the rows before it are undone.
    """
    global _changes
    if applied():
        return
    _check_version()
    changes: dict[str, Any] = {}
    try:
        for patch in PATCHES:
            if patch.needed:
                after = _resolve(patch.replacement)
                entries, key = _entry(patch.target)
                changes[patch.target] = entries.get(key, _MISSING)
                entries[key] = after
    except BaseException:
        _revert(changes)
        raise
    _changes = changes
    for name in drift():
        logger.warning("The source of %s has changed since its patch was written.", name)


def undo() -> None:
    """Take back what `apply` did, last row first; nothing where nothing is applied.

    A module imported in between keeps the names that it imported.
    """
    global _changes
    _revert(_changes or {})
    _changes = None


def applied() -> bool:
    """Whether the rows are in force."""
    return _changes is not None


def drift() -> list[str]:
    """Targets of the rows whose host source is not the one that the row was written against.

    Imports the host modules that such rows name; applied or not makes no difference.
    """
    found = []
    for patch in filter(lambda patch: patch.source_sha256, PATCHES):
        entries, key = _entry(patch.target)
        host = (_changes or {}).get(patch.target) or entries.get(key)
        if _source_hash(host) != patch.source_sha256:
            found.append(patch.target)
    return found


def _check_version() -> None:
    version = metadata.version(HOST)
    for patch in PATCHES:
        if version not in patch.versions:
            raise RuntimeError(
                f"{HOST} {version} is installed, but the patch of {patch.target} holds for "
                f"{' or '.join(patch.versions)} only: pip install {HOST}=={patch.versions[-1]}"
            )


def _revert(changes: dict[str, Any]) -> None:
    """Put back what was there."""
    for target, before in reversed(changes.items()):
        entries, key = _entry(target)
        if before is _MISSING:
            del entries[key]
        else:
            entries[key] = before


def _entry(target: str) -> tuple[MutableMapping[str, Any], str]:
    """The mapping and the key that a row's target names."""
    owner, _, key = target.removesuffix("]").partition("[")
    return _resolve(owner), key


def _resolve(name: str) -> Any:
    """The object that "module:attribute.path" names, importing the module."""
    module, _, path = name.partition(":")
    return reduce(getattr, path.split("."), importlib.import_module(module))


def _source_hash(host_object: Any) -> str | None:
    """Hash of an object's source; None where it has none."""
    try:
        return hashlib.sha256(inspect.getsource(host_object).encode()).hexdigest()
    except (TypeError, OSError):
        return None
