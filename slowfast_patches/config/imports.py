"""Import of user modules that register models, data sets and more (key IMPORTS).

The option --import sets IMPORTS. `load_recipe` imports the modules before it checks the recipe.
Because IMPORTS is part of the recipe, all processes of a run (launch/launch.py), SLURM jobs and
runs of an experiment import the same modules. `config.yaml` and checkpoints store the module names.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

from multigrid import MultigridError
from slowfast_patches.registry import import_built_in
from slowfast_patches.utils.errors import UserError


def import_modules(names: Sequence[str]) -> None:
    """Import the modules of IMPORTS from the current folder or the Python path.

    Raises:
        UserError: A module does not exist or is not valid Python, or it registers an invalid entry.
            Other exceptions of a module pass.
    """
    import_built_in()  # so that a module cannot take a name of the package
    if names and os.getcwd() not in sys.path:
        # Append the folder, so that its files cannot hide installed packages.
        sys.path.append(os.getcwd())
    for name in names:
        try:
            import_module(name)
        except (MultigridError, ModuleNotFoundError, SyntaxError, SystemExit) as error:
            # A script may call sys.exit(). Other exceptions are bugs of the module.
            frames = traceback.extract_tb(error.__traceback__)
            own = [f for f in frames if not f.filename.startswith("<frozen ")]
            place = f" ({own[-1].filename}, line {own[-1].lineno})" if len(own) > 2 else ""
            raise UserError(
                f"IMPORTS {name}: {type(error).__name__}: {error}{place}. Correct the module. If "
                "it was not found, give its name without .py, and start in its folder, or add the "
                "folder to PYTHONPATH."
            ) from error


def require_imported(names: Sequence[str], source: str) -> None:
    """Check that all modules named in an untrusted file have already been imported.

    Raises:
        ValueError: A module has not been imported. Importing the module could run unknown code.
    """
    if missing := [name for name in names if name not in sys.modules]:
        modules = ",".join(missing)
        raise UserError(
            f"{source} needs the module {modules}. Modules named in a file are not imported "
            "without your consent, because they can run any code. If you trust the module, add "
            f"--import {modules}, or import it first."
        )
