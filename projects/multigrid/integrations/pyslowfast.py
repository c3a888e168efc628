"""Multigrid training in PySlowFast: its released version, later releases and forks.

`enable` makes the unchanged training script of a later release train the multigrid schedule. Call
it at the top of the script, before its other imports:

    from multigrid.integrations.pyslowfast import enable; enable()

Or run the script through this module, with no change at all:

    python -m multigrid.integrations.pyslowfast tools/run_net.py --cfg ...

In a loop that `enable` does not know, use `PySlowFastMultigrid`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from multigrid.integrations.pyslowfast_fork import enable
from multigrid.integrations.pyslowfast_keys import add_multigrid_config
from multigrid.integrations.pyslowfast_loop import PySlowFastMultigrid

__all__ = ["PySlowFastMultigrid", "add_multigrid_config", "enable"]


def _script() -> Path:
    """Make the first argument of this program the script, as `python SCRIPT` does."""
    if len(sys.argv) < 2:
        sys.exit("usage: python -m multigrid.integrations.pyslowfast SCRIPT [ARGUMENT ...]")
    del sys.argv[0]
    script = Path(sys.argv[0])
    if not script.is_file():
        sys.exit(f"{script} is not a file. Give the path of the training script.")
    sys.path.insert(0, str(script.resolve().parent))
    return script


# A process that the script spawns runs this module again, as __mp_main__. It then needs the
# functions of the script, and multigrid enabled, just as its parent.
if __name__ in ("__main__", "__mp_main__"):
    _path = _script() if __name__ == "__main__" else Path(sys.argv[0])
    enable()
    __file__ = str(_path)
    exec(compile(_path.read_bytes(), _path, "exec"), globals())
