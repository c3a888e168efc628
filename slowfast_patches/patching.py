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
import re
from collections.abc import Sequence
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

    target: what is replaced: "module:attribute.path" or, for an entry of a mapping,
        "module:attribute.path[key]". An entry that does not exist yet is added, and removed again.
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


def _detectron2_layers() -> ModuleType:
    """A module `detectron2.layers` with `ROIAlign` alone.

    The parent package stays absent, so that whoever asks whether detectron2 is installed still
    gets the true answer; Python finds a submodule in sys.modules without importing its parent.
    """
    name = "detectron2.layers"
    module = ModuleType(name, "Placeholder of slowfast_patches: detectron2 is not installed.")
    module.__spec__ = ModuleSpec(name, loader=None, origin="slowfast_patches.patching")
    module.__dict__["ROIAlign"] = ROIAlign
    return module


DETECTRON2_LAYERS = _detectron2_layers()

_MISSING: Any = object()


@dataclass(frozen=True)
class _Place:
    """An attribute of an object, or an item of a mapping, that can be read and replaced."""

    owner: Any
    key: str
    is_item: bool

    def read(self) -> Any:
        if self.is_item:
            return self.owner.get(self.key, _MISSING)
        return vars(self.owner).get(self.key, _MISSING)

    def write(self, value: Any) -> None:
        """Put a value there; `_MISSING` removes what is there."""
        if value is not _MISSING and self.is_item:
            self.owner[self.key] = value
        elif value is not _MISSING:
            setattr(self.owner, self.key, value)
        elif self.is_item:
            del self.owner[self.key]
        else:
            delattr(self.owner, self.key)


@dataclass(frozen=True)
class _Change:
    """What one applied row did."""

    patch: Patch
    place: _Place
    before: Any
    after: Any

    def revert(self) -> None:
        """Put back what was there, unless somebody has put something else there since."""
        if self.place.read() is self.after:
            self.place.write(self.before)


_changes: list[_Change] | None = None
"""What apply() did, in order; None while nothing is applied."""


def apply() -> None:
    """Apply every row that is needed, or none; nothing where they are applied already.

    A row whose host source has drifted is applied with a warning.

    Raises:
        RuntimeError: the host is missing, or its version is not one that a row holds for.
        Exception: whatever a row's import raised; the rows before it are undone.
    """
    global _changes
    if applied():
        return
    _check_versions(PATCHES)
    changes: list[_Change] = []
    try:
        for patch in PATCHES:
            if patch.needed:
                changes.append(_install(patch))
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
    _revert(_changes or [])
    _changes = None


def applied() -> bool:
    """Whether the rows are in force."""
    return _changes is not None


def drift() -> list[str]:
    """Targets of the rows whose host source is not the one that the row was written against.

    Imports the host modules that such rows name; applied or not makes no difference.
    """
    replaced = {change.patch: change.before for change in _changes or []}
    return [
        patch.target
        for patch in PATCHES
        if patch.source_sha256 is not None
        and _source_hash(replaced.get(patch, _MISSING), patch) != patch.source_sha256
    ]


def _check_versions(patches: Sequence[Patch]) -> None:
    try:
        version = metadata.version(HOST)
    except metadata.PackageNotFoundError:
        raise RuntimeError(f"{HOST} is not installed: pip install {HOST}==1.0") from None
    refused = [patch for patch in patches if version not in patch.versions]
    if refused:
        known = " or ".join(refused[0].versions)
        raise RuntimeError(
            f"{HOST} {version} is installed, but the patch of {refused[0].target} holds for "
            f"{known} only: pip install {HOST}=={refused[0].versions[-1]}"
        )


def _install(patch: Patch) -> _Change:
    replacement = _resolve(patch.replacement)
    place = _locate(patch.target)
    change = _Change(patch, place, before=place.read(), after=replacement)
    place.write(replacement)
    return change


def _revert(changes: Sequence[_Change]) -> None:
    for change in reversed(changes):
        change.revert()


def _locate(target: str) -> _Place:
    """Find the place that a row's target names, importing its module."""
    match = re.fullmatch(r"(?P<owner>[\w.]+:[\w.]+)\[(?P<key>.+)\]", target)
    if match:
        return _Place(_resolve(match["owner"]), match["key"], is_item=True)
    module, _, path = target.partition(":")
    *parents, name = path.split(".")
    owner = reduce(getattr, parents, importlib.import_module(module))
    return _Place(owner, name, is_item=False)


def _resolve(name: str) -> Any:
    """The object that "module:attribute.path" names."""
    module, _, path = name.partition(":")
    return reduce(getattr, path.split("."), importlib.import_module(module))


def _source_hash(replaced: Any, patch: Patch) -> str | None:
    """Hash of the host's source; None where there is no such object, or no source."""
    host_object = _locate(patch.target).read() if replaced is _MISSING else replaced
    try:
        return hashlib.sha256(inspect.getsource(host_object).encode()).hexdigest()
    except (TypeError, OSError):
        return None
