"""Import of user modules that register models, data sets and augmentations (key IMPORTS).

The option --import sets IMPORTS. `load_recipe` imports the modules before it checks the recipe.
Because IMPORTS is part of the recipe, all processes of a run (launch/workers.py), SLURM jobs and
runs of a study import the same modules. `config.yaml` and checkpoints store the module names.
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
"""Function that takes a training clip (T, S, S, 3) and a random generator, and returns a clip of
the same shape."""

AUGMENTATIONS: dict[str, Augment] = {}
"""Registered augmentations by name, for the key AUG.CUSTOM."""


def register(table: dict[str, T], kind: str, name: str, value: T) -> None:
    """Add an entry to a table of models, data sets or augmentations.

    Args:
        table: Table to add to.
        kind: Noun for an entry in error messages, such as "model".
        name: Name by which recipes refer to the entry.
        value: The entry.

    Raises:
        ValueError: The name is taken, or has invalid characters.
    """
    if not re.fullmatch(r"[A-Za-z_][\w.-]*", name):
        raise ValueError(
            f"{name!r} cannot be the name of a {kind}. Use letters, digits, '_', '.' and '-', with "
            "a letter first."
        )
    if name in table:
        raise ValueError(
            f"there is already a {kind} named {name!r}. Use a name other than "
            f"{format_list(list(table), 'or')}."
        )
    table[name] = value


def register_augmentation(name: str) -> Callable[[Augment], Augment]:
    """Return a decorator that registers a function as an augmentation for AUG.CUSTOM.

    Args:
        name: Name of the augmentation in AUG.CUSTOM.

    Raises:
        ValueError: The name is taken or invalid, or the function does not return a clip of the
            same shape and type.
    """

    def decorate(augment: Augment) -> Augment:
        change_clip(name, augment, np.zeros((2, 32, 32, 3), np.uint8), np.random.default_rng(0))
        register(AUGMENTATIONS, "augmentation", name, augment)
        return augment

    return decorate


def change_clip(
    name: str, augment: Augment, clip: NDArray[np.uint8], rng: np.random.Generator
) -> None:
    """Apply an augmentation and write the result into the clip.

    Raises:
        ValueError: The augmentation does not return a clip of the same shape and type.
    """
    changed = augment(clip, rng)
    found = (getattr(changed, "shape", None), getattr(changed, "dtype", type(changed)))
    if found != (clip.shape, clip.dtype):
        raise ValueError(
            f"the augmentation {name!r} must return a clip {clip.shape} uint8, not {changed!r:.60}"
        )
    clip[...] = changed


def import_modules(names: Sequence[str]) -> None:
    """Import the modules of IMPORTS from the current folder or the Python path.

    Raises:
        ValueError: A module does not exist, or raises an exception while it is imported.
    """
    if names and os.getcwd() not in sys.path:
        # Append the folder, so that its files cannot hide installed packages.
        sys.path.append(os.getcwd())
    for name in names:
        try:
            import_module(name)
        except (Exception, SystemExit) as error:  # A script may call sys.exit().
            raise ValueError(f"IMPORTS {name}: {_explain(name, error)}") from error


def require_imported(names: Sequence[str], source: str) -> None:
    """Check that all modules named in an untrusted file have already been imported.

    Raises:
        ValueError: A module has not been imported. Importing the module could run unknown code.
    """
    if missing := [name for name in names if name not in sys.modules]:
        modules = ",".join(missing)
        raise ValueError(
            f"{source} needs the module {modules}. Modules named in a file are not imported "
            "without your consent, because they can run any code. If you trust the module, add "
            f"--import {modules}, or import it first."
        )


def _explain(name: str, error: BaseException) -> str:
    """Describe why a module cannot be imported, with the file and line of the error."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and f"{name}.".startswith(f"{missing}."):
        return (
            f"there is no such module in {os.getcwd()} or on the Python path. For my_model.py, "
            "write my_model. Start in the folder of the module, or add the folder to PYTHONPATH."
        )
    package = str(Path(__file__).parents[1])
    frames = traceback.extract_tb(error.__traceback__)
    place = [frame for frame in frames if not frame.filename.startswith(package)][-1]
    where = "" if isinstance(error, SyntaxError) else f" ({place.filename}, line {place.lineno})"
    first_line = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first_line}{where}. Correct the module."
