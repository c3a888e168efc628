"""Read and change the keys of a PySlowFast config.

A config is a `CfgNode` of yacs, from PySlowFast 1.0, a later release or a fork. It may lack the
keys that only multigrid has. They then have the default values below.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from functools import reduce
from operator import getitem
from typing import Any

from multigrid.cycles import PAPER
from multigrid.errors import MultigridError

logger = logging.getLogger(__name__)

_DEFAULTS: Mapping[str, Any] = {
    "MULTIGRID.SIZE_DIVISOR": 1,
    "MULTIGRID.EQUAL_TIME": False,
    "MULTIGRID.WARMUP_IN_EPOCHS": True,
    "MULTIGRID.FINE_TUNING": True,
    "MULTIGRID.LONG_CYCLE": False,
    "MULTIGRID.SHORT_CYCLE": False,
    "MULTIGRID.STAGES": [],
    "MULTIGRID.LONG_CYCLE_FACTORS": [list(factors) for factors in PAPER.long_cycle],
    "MULTIGRID.SHORT_CYCLE_FACTORS": list(PAPER.short_cycle),
    "MULTIGRID.EPOCH_FACTOR": 1.5,
    "MULTIGRID.BATCH_EXPONENT": 1.0,
    "MULTIGRID.BN_BASE_SIZE": 8,
    "MULTIGRID.EVAL_FREQ": 3,
    "MULTIGRID.LONG_CYCLE_SAMPLING_RATE": 0,
    "MULTIGRID.DEFAULT_B": 0,
    "MULTIGRID.DEFAULT_T": 0,
    "MULTIGRID.DEFAULT_S": 0,
    "MULTIGRID.KEEP_FIELD_OF_VIEW": False,
    "SOLVER.BATCH_RATE_RULE": "linear",
    "SOLVER.COSINE_END_LR": 0.0,
    "SOLVER.COSINE_AFTER_WARMUP": False,
}
"""Default values of keys that a release of PySlowFast may lack."""

_MISSING = object()

_OFF: Mapping[str, Any] = {
    "MULTIGRID.LONG_CYCLE": False,
    "MULTIGRID.SHORT_CYCLE": False,
    "MULTIGRID.STAGES": [],
    "MULTIGRID.LONG_CYCLE_SAMPLING_RATE": 0,
    "MULTIGRID.DEFAULT_B": 0,
    "MULTIGRID.DEFAULT_T": 0,
    "MULTIGRID.DEFAULT_S": 0,
}
"""Values that turn off the multigrid code in the data sets and loaders of later releases."""


def find_key(cfg: Any, name: str, default: Any = None) -> Any:
    """Return the value of a key such as "DATA.NUM_FRAMES", or a default if the config lacks it."""
    try:
        return reduce(getitem, name.split("."), cfg)
    except KeyError:
        return default


def get_key(cfg: Any, name: str) -> Any:
    """Return the value of a key, or multigrid's default if the config lacks it.

    Raises:
        ValueError: The config lacks the key, and multigrid has no default for it.
    """
    value = find_key(cfg, name, _DEFAULTS.get(name, _MISSING))
    if value is _MISSING:
        raise MultigridError(
            f"the config has no key {name}, which multigrid needs. Add it to the defaults of your "
            "fork (slowfast/config/defaults.py)"
        )
    return value


def set_keys(cfg: Any, values: Mapping[str, Any]) -> None:
    """Set keys of a config. Sections and keys that the config lacks are not added."""
    for name, value in values.items():
        section, key = name.split(".")
        if key in cfg.get(section, ()):
            cfg[section][key] = value  # Unlike an attribute, an item of a frozen config can be set.


def add_multigrid_config(cfg: Any) -> None:
    """Add the keys of MULTIGRID and SOLVER that a config lacks.

    Call this before you merge a recipe into the config.
    """
    for name, value in _DEFAULTS.items():
        section, key = name.split(".")
        cfg.setdefault(section, type(cfg)()).setdefault(key, copy.deepcopy(value))


def baseline_config(cfg: Any) -> Any:
    """Return a copy of a config with the multigrid code of PySlowFast turned off."""
    baseline = copy.deepcopy(cfg)
    set_keys(baseline, _OFF)
    return baseline


def uses_multigrid(cfg: Any) -> bool:
    """Return whether the long or the short cycle is on, or MULTIGRID.STAGES is set."""
    names = ("MULTIGRID.LONG_CYCLE", "MULTIGRID.SHORT_CYCLE", "MULTIGRID.STAGES")
    return any(get_key(cfg, name) for name in names)


def has_cycles(cfg: Any) -> bool:
    """Return whether a cycle changes shapes. After `start_stages`, no cycle does."""
    long_cycle = get_key(cfg, "MULTIGRID.LONG_CYCLE")
    has_factors = bool(get_key(cfg, "MULTIGRID.LONG_CYCLE_FACTORS"))
    return bool((long_cycle and has_factors) or get_key(cfg, "MULTIGRID.SHORT_CYCLE"))


def start_stages(cfg: Any) -> None:
    """Let PySlowFast's script train the stages of a config, if it has stages and no cycle.

    The script starts multigrid only if a cycle is on. So turn on a long cycle without factors,
    which has no shapes.
    """
    if get_key(cfg, "MULTIGRID.STAGES") and not has_cycles(cfg):
        set_keys(cfg, {"MULTIGRID.LONG_CYCLE": True, "MULTIGRID.LONG_CYCLE_FACTORS": []})


def use_plain_batchnorm(cfg: Any) -> None:
    """Set BN.NORM_TYPE to batchnorm, whose layers multigrid converts, and log the change."""
    norm = find_key(cfg, "BN.NORM_TYPE", "batchnorm")
    if norm != "batchnorm":
        logger.warning(
            f"BN.NORM_TYPE {norm} is replaced by batchnorm. In multigrid training, "
            "MULTIGRID.BN_BASE_SIZE clips share BN statistics, on one or several processes."
        )
        set_keys(cfg, {"BN.NORM_TYPE": "batchnorm"})
