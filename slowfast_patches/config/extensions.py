"""Modules of the user that register models, data sets and augmentations: the key IMPORTS.

The option --import sets the key, and `load_recipe` imports the modules before it checks the recipe.
The key is part of the recipe, so it reaches the processes of a run (launch/workers.py), SLURM jobs,
the runs of a study, `config.yaml` and checkpoints.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from slowfast_patches.utils.tables import format_list

__all__ = [
    "AUGMENTATIONS",
    "Augment",
    "change_clip",
    "import_modules",
    "register",
    "register_augmentation",
    "require_imported",
]

T = TypeVar("T")

Augment = Callable[[NDArray[np.uint8], np.random.Generator], NDArray[np.uint8]]
"""Function from a training clip (T, S, S, 3) and a random generator to a clip of that shape."""

AUGMENTATIONS: dict[str, Augment] = {}
"""Registered augmentations by name, for the key AUG.CUSTOM."""


def register(table: dict[str, T], kind: str, name: str, value: T) -> None:
    """Add an entry to a table of models, data sets or augmentations.

    Args:
        table: Table to add to.
        kind: What the entries are, for error messages.
        name: Name of the entry in a recipe.
        value: The entry.

    Raises:
        ValueError: The name is taken, or cannot be written in a recipe.
    """
    if not re.fullmatch(r"[A-Za-z_][\w.-]*", name):
        raise ValueError(
            f"{name!r} cannot be the name of a {kind}. Use letters, digits, '_', '.' and '-', with "
            "a letter first."
        )
    if name in table:
        raise ValueError(
            f"there is a {kind} {name!r} already. Register yours under another name than "
            f"{format_list(list(table), 'or')}."
        )
    table[name] = value


def register_augmentation(name: str) -> Callable[[Augment], Augment]:
    """Return a decorator that registers a function as an augmentation for AUG.CUSTOM.

    Args:
        name: Name in a recipe.

    Raises:
        ValueError: The name is taken or invalid, or the function does not return a clip.
    """

    def decorate(augment: Augment) -> Augment:
        change_clip(name, augment, np.zeros((2, 32, 32, 3), np.uint8), np.random.default_rng(0))
        register(AUGMENTATIONS, "augmentation", name, augment)
        return augment

    return decorate


def change_clip(
    name: str, augment: Augment, clip: NDArray[np.uint8], rng: np.random.Generator
) -> None:
    """Change a clip in place by an augmentation.

    Raises:
        ValueError: The augmentation does not return a clip of the same shape.
    """
    changed = augment(clip, rng)
    found = (getattr(changed, "shape", None), getattr(changed, "dtype", type(changed)))
    if found != (clip.shape, clip.dtype):
        raise ValueError(
            f"the augmentation {name!r} must return a clip {clip.shape} uint8, not {changed!r:.60}"
        )
    clip[...] = changed


def import_modules(names: Sequence[str]) -> None:
    """Import the modules of IMPORTS, from the current folder or the Python path.

    Raises:
        ValueError: A module does not exist, or raises an error.
    """
    if names and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # At the end, so that no file there hides a package.
    for name in names:
        try:
            import_module(name)
        except (Exception, SystemExit) as error:  # A script that ends itself raises SystemExit.
            raise ValueError(f"IMPORTS {name}: {_explain(name, error)}") from error


def require_imported(names: Sequence[str], source: str) -> None:
    """Check that the modules which a file of others names have been imported.

    Raises:
        ValueError: One has not, so that importing it could run unknown code.
    """
    if missing := [name for name in names if name not in sys.modules]:
        modules = ",".join(missing)
        raise ValueError(
            f"{source} needs the module {modules}, which is not imported from a file without your "
            f"consent. If you know the module, add --import {modules}, or import it first."
        )


def _explain(name: str, error: BaseException) -> str:
    """Describe why a module cannot be imported, with the place in it."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and f"{name}.".startswith(f"{missing}."):
        return (
            f"there is no such module in {os.getcwd()} or on the Python path. Name a module such "
            "as my_model for my_model.py, start in its folder, or add the folder to PYTHONPATH."
        )
    package = str(Path(__file__).parents[1])
    frames = traceback.extract_tb(error.__traceback__)
    place = [frame for frame in frames if not frame.filename.startswith(package)][-1]
    where = "" if isinstance(error, SyntaxError) else f" ({place.filename}, line {place.lineno})"
    first_line = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first_line}{where}. Correct the module."
