"""The command lines of this folder, and `main`, which an installed command calls by its name."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from slowfast_patches.utils.command_line import ends_early

__all__ = ["COMMANDS", "main"]

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
    """Run the program of the installed command that was called; returns the exit status."""
    name = COMMANDS[Path(sys.argv[0]).stem]
    ends_early(resumes=name == "run_net")
    program = import_module(f"{__name__}.{name}")
    status: int = program.main()
    return status
