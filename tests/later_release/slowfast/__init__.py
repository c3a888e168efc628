"""Stand-in for a later release: PySlowFast 1.0, changed by _later.py."""

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path

_HERE = str(Path(__file__).parents[1])
_found = PathFinder.find_spec("slowfast", [path for path in sys.path if path != _HERE])
__path__ += _found.submodule_search_locations

import_module("slowfast._later")
