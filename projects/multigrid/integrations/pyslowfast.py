"""Multigrid training in PySlowFast: its released version, later releases and forks.

`enable` makes the unchanged training script of a later release train the multigrid schedule. Call
it at the top of the script, before its other imports:

    from multigrid.integrations.pyslowfast import enable; enable()

Or run the script through this module, with no change at all:

    python -m multigrid.integrations.pyslowfast tools/run_net.py --cfg ...

In a loop that `enable` does not know, use `PySlowFastMultigrid`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from torch.multiprocessing.spawn import ProcessRaisedException

from multigrid.errors import MultigridError
from multigrid.integrations.pyslowfast_fork import enable
from multigrid.integrations.pyslowfast_keys import add_multigrid_config, baseline_config
from multigrid.integrations.pyslowfast_loop import PySlowFastMultigrid
from multigrid.integrations.pyslowfast_tools import provide_private_package, train_and_test

__all__ = ["PySlowFastMultigrid", "add_multigrid_config", "baseline_config", "enable"]


_SCRIPT = "MULTIGRID_SCRIPT"
"""Environment variable with the path of the script, for processes that the script spawns."""


def _take_script() -> None:
    """Change sys.argv and sys.path as if Python had been started with the script."""
    usage = "usage: python -m multigrid.integrations.pyslowfast SCRIPT [ARGUMENT ...]"
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(f"{usage}\nSCRIPT is tools/run_net.py or tools/train_net.py of your PySlowFast")
    if not Path(sys.argv[1]).is_file():
        sys.exit(f"error: there is no script {sys.argv[1]} in {Path.cwd()}\n{usage}")
    del sys.argv[0]
    script = Path(sys.argv[0]).resolve()
    sys.path.insert(0, str(script.parent))
    os.environ[_SCRIPT] = str(script)


def _enable_or_exit() -> None:
    """Enable multigrid in PySlowFast, or end the program with a message."""
    try:
        enable(require_cycles=True)
    except ImportError as error:
        sys.exit(f"Multigrid training cannot be enabled: {error}")


def _mistake_in(error: Exception) -> str | None:
    """Return the message of a `MultigridError`, also of a spawned process, or None."""
    if isinstance(error, MultigridError):
        return str(error)
    _, is_mistake, message = str(error).rpartition("multigrid.errors.MultigridError: ")
    return message.strip() if is_mistake else None


# A process that the script spawns imports this module as __mp_main__.
# Such a process needs the same names as its parent, and must enable multigrid.
# It imports tools/train_net.py only when needed, because that file only defines functions.
if __name__ == "__main__":
    _take_script()
if __name__ in ("__main__", "__mp_main__"):
    __file__ = os.environ[_SCRIPT]
    provide_private_package(Path(__file__).parent)
    _enable_or_exit()
    try:
        if Path(__file__).name != "train_net.py":
            exec(compile(Path(__file__).read_bytes(), __file__, "exec"), globals())
        elif __name__ == "__main__":
            train_and_test()
    except (MultigridError, ProcessRaisedException) as error:
        if message := _mistake_in(error):
            sys.exit(f"error: {message}")
        raise
    except ModuleNotFoundError as error:
        error.add_note(
            "tools/run_net.py imports PySlowFast's demo and visualization, too. To train without "
            "the packages that these need, start tools/train_net.py instead"
        )
        raise
