"""Command-line programs of the package, and the entry point of all installed commands."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from slowfast_patches.utils.command_line import start_program
from slowfast_patches.utils.interruption import MISTAKE_STATUS

__all__ = ["COMMANDS", "main"]

# Maps the commands that pyproject.toml installs to the modules of this package.
COMMANDS = {
    "multigrid-train": "run_net",
    "multigrid-plan": "plan",
    "multigrid-compare": "compare",
    "multigrid-predict": "predict",
    "multigrid-prepare": "prepare_data",
    "multigrid-reproduce": "reproduce",
    "multigrid-submit": "submit",
    "multigrid-pilot": "pilot",
    "multigrid-demo-data": "make_demo_data",
}


def main() -> int:
    """Run the program that `sys.argv[0]` names, and return its exit status."""
    given = Path(sys.argv[0]).stem
    if given not in COMMANDS:
        names = ", ".join(COMMANDS)
        text = f"error: {sys.argv[0]} was renamed. The name must be that of a command: {names}."
        print(text, file=sys.stderr)
        return MISTAKE_STATUS
    name = COMMANDS[given]
    start_program(resumes=name == "run_net")
    program = import_module(f"{__name__}.{name}")
    status: int = program.main()
    return status
