"""Start the functions in the folder tools/ of a PySlowFast checkout."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from types import ModuleType

_PRIVATE = "vision.fair.slowfast.tools"
"""Package from which tools/run_net.py of PySlowFast's main branch imports. It is not public."""


def provide_private_package(tools: Path) -> None:
    """Make the private package of PySlowFast's authors a name for the folder tools/ of a checkout.

    If a package `vision` is installed, do nothing.
    """
    parts = _PRIVATE.split(".")
    if parts[0] in sys.modules or find_spec(parts[0]) is not None:
        return
    for name in accumulate(parts, "{}.{}".format):
        module = sys.modules[name] = ModuleType(name)
        module.__path__ = [str(tools)] if name == _PRIVATE else []


def train_and_test() -> None:
    """Train and test each config file of the command line.

    This calls the functions that tools/run_net.py calls. It does not import the demo and the
    visualisation, which need detectron2 and other packages.
    """
    parser = import_module("slowfast.utils.parser")
    defaults = import_module("slowfast.config.defaults")
    misc = import_module("slowfast.utils.misc")
    arguments = parser.parse_args()
    files: list[list[str]] = [[file] for file in getattr(arguments, "cfg_files", ())]
    for file in files or [[]]:  # Before 2021, the one config file is in the arguments.
        cfg = defaults.assert_and_infer_cfg(parser.load_config(arguments, *file))
        for section, name in ((cfg.TRAIN, "train"), (cfg.TEST, "test")):
            if section.ENABLE:
                function = getattr(import_module(f"{name}_net"), name)
                misc.launch_job(cfg=cfg, init_method=arguments.init_method, func=function)
