"""Command-line programs of the package, and the entry point of all installed commands."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from slowfast_patches.utils.command_line import start_program
from slowfast_patches.utils.interruption import MISTAKE_STATUS

__all__ = ["COMMANDS", "installed_commands", "main"]

COMMANDS = {
    "multigrid-train": "run_net",
    "multigrid-plan": "plan",
    "multigrid-compare": "compare",
    "multigrid-predict": "predict",
    "multigrid-prepare": "prepare_data",
    "multigrid-reproduce": "reproduce",
    "multigrid-submit": "submit",
}
"""Maps the commands of the core to the modules of this package."""


def installed_commands() -> dict[str, str]:
    """Map all commands to the modules of this package.

    An extra adds the command multigrid-x-y with the module x_y.
    """
    modules = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))
    added = [name for name in modules if name not in COMMANDS.values()]
    return COMMANDS | {f"multigrid-{name.replace('_', '-')}": name for name in added}


def main() -> int:
    """Run the program that `sys.argv[0]` names, and return its exit status."""
    given = Path(sys.argv[0]).stem
    commands = installed_commands()
    if given not in commands:
        print(f"error: {_reason(given)} The commands are: {', '.join(commands)}.", file=sys.stderr)
        return MISTAKE_STATUS
    name = commands[given]
    start_program(resumes=name == "run_net")
    program = import_module(f"{__name__}.{name}")
    status: int = program.main()
    return status


def _reason(given: str) -> str:
    """Return the reason why there is no program for a command."""
    prefix, _, name = given.partition("-")
    if prefix != "multigrid" or not name:
        return f"{sys.argv[0]} was renamed. The name must be that of a command."
    file = f"tools/{name.replace('-', '_')}.py"
    return f"the command {given} is not installed: the package has no {file}."
