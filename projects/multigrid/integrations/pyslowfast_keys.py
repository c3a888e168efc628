"""Read and change the keys of a PySlowFast config.

A config is any object with the sections and keys of PySlowFast. It may come from PySlowFast 1.0, a
later release or a fork.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from multigrid.cycles import PAPER
from multigrid.keys import rate_from, schedule_from
from multigrid.learning_rate import LearningRate
from multigrid.schedule import Schedule

logger = logging.getLogger(__name__)

_DEFAULTS: Mapping[str, Any] = {
    "SIZE_DIVISOR": 1,
    "EQUAL_TIME": False,
    "WARMUP_IN_EPOCHS": True,
    "FINE_TUNING": True,
    "LONG_CYCLE": False,
    "SHORT_CYCLE": False,
    "LONG_CYCLE_FACTORS": [list(factors) for factors in PAPER.long_cycle],
    "SHORT_CYCLE_FACTORS": list(PAPER.short_cycle),
    "EPOCH_FACTOR": 1.5,
    "BATCH_EXPONENT": 1.0,
    "BN_BASE_SIZE": 8,
    "EVAL_FREQ": 3,
    "LONG_CYCLE_SAMPLING_RATE": 0,
    "DEFAULT_B": 0,
    "DEFAULT_T": 0,
    "DEFAULT_S": 0,
    "KEEP_FIELD_OF_VIEW": False,
}
"""Default values of the keys in the section MULTIGRID. No release of PySlowFast has the first four
keys, which are options of `make_schedule`."""

_SOLVER_DEFAULTS: Mapping[str, Any] = {
    "BATCH_RATE_RULE": "linear",
    "COSINE_END_LR": 0.0,
    "COSINE_AFTER_WARMUP": False,
}
"""Default values of keys of SOLVER that a release of PySlowFast may lack."""

CYCLES_OFF: Mapping[str, Any] = {
    "MULTIGRID.LONG_CYCLE": False,
    "MULTIGRID.SHORT_CYCLE": False,
    "MULTIGRID.LONG_CYCLE_SAMPLING_RATE": 0,
    "MULTIGRID.DEFAULT_B": 0,
    "MULTIGRID.DEFAULT_T": 0,
    "MULTIGRID.DEFAULT_S": 0,
}
"""Values that turn off the multigrid code in the data sets and loaders of later releases."""


def get_key(cfg: Any, name: str, default: Any = None) -> Any:
    """Return the value of a key such as "DATA.NUM_FRAMES", or `default` if there is no such key."""
    section, _, key = name.rpartition(".")
    return getattr(getattr(cfg, section, None) if section else cfg, key, default)


def set_keys(cfg: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Set keys of a config, which may be frozen. Keys that do not exist are ignored.

    Returns:
        The previous values of the changed keys.
    """
    frozen = hasattr(cfg, "is_frozen") and cfg.is_frozen()
    if frozen:
        cfg.defrost()
    former = dict[str, Any]()
    for name, value in values.items():
        section, _, key = name.partition(".")
        if hasattr(getattr(cfg, section, None), key):
            former[name] = getattr(getattr(cfg, section), key)
            setattr(getattr(cfg, section), key, value)
    if frozen:
        cfg.freeze()
    return former


@contextmanager
def changed(cfg: Any, values: Mapping[str, Any]) -> Iterator[None]:
    """Context manager: set keys of a config temporarily. Keys that do not exist are ignored."""
    former = set_keys(cfg, values)
    try:
        yield
    finally:
        set_keys(cfg, former)


def add_multigrid_config(cfg: Any) -> None:
    """Add the keys of MULTIGRID, and SOLVER.BATCH_RATE_RULE, that a config lacks.

    Call this before you merge a recipe into the config.
    """
    _add(cfg, "MULTIGRID", _DEFAULTS)
    _add(cfg, "SOLVER", {"BATCH_RATE_RULE": _SOLVER_DEFAULTS["BATCH_RATE_RULE"]})


def _add(cfg: Any, name: str, defaults: Mapping[str, Any]) -> None:
    if not hasattr(cfg, name):
        setattr(cfg, name, type(cfg)())
    section = getattr(cfg, name)
    for key, value in defaults.items():
        if not hasattr(section, key):
            setattr(section, key, copy.deepcopy(value))


def cycles_off(cfg: Any) -> Any:
    """Return a copy of a config with the multigrid code of PySlowFast turned off."""
    baseline = copy.deepcopy(cfg)
    set_keys(baseline, CYCLES_OFF)
    return baseline


def uses_multigrid(cfg: Any) -> bool:
    """Return whether the long or the short cycle is on."""
    cycles = ("MULTIGRID.LONG_CYCLE", "MULTIGRID.SHORT_CYCLE")
    return any(get_key(cfg, cycle, False) for cycle in cycles)


def use_plain_batchnorm(cfg: Any) -> None:
    """Set BN.NORM_TYPE batchnorm, the layers that multigrid converts, and log a change."""
    norm = get_key(cfg, "BN.NORM_TYPE", "batchnorm")
    if norm != "batchnorm":
        logger.warning(
            f"BN.NORM_TYPE {norm} is replaced by batchnorm. In multigrid training, "
            "MULTIGRID.BN_BASE_SIZE clips share BN statistics, on one or several processes."
        )
        set_keys(cfg, {"BN.NORM_TYPE": "batchnorm"})


def schedule_of(cfg: Any, num_videos: int, learning_rate: LearningRate | None = None) -> Schedule:
    """Build the schedule that a config describes.

    If both cycles are off, this is the schedule of the baseline.

    Args:
        cfg: The config, unchanged since it was loaded. TRAIN.BATCH_SIZE is the batch size per
            machine, and NUM_SHARDS the number of machines.
        num_videos: Number of training videos.
        learning_rate: Learning-rate policy of the baseline. None means the policy in SOLVER.

    Raises:
        ValueError: The config describes no valid schedule, or has been changed since it was loaded.
    """
    _check(cfg)
    value_of = _values(cfg)
    bn_size = value_of("MULTIGRID.BN_BASE_SIZE") if uses_multigrid(cfg) else 0
    return schedule_from(value_of, num_videos, bn_size, learning_rate)


def _values(cfg: Any) -> Callable[[str], Any]:
    defaults = {f"MULTIGRID.{key}": value for key, value in _DEFAULTS.items()}
    defaults |= {f"SOLVER.{key}": value for key, value in _SOLVER_DEFAULTS.items()}
    return lambda name: get_key(cfg, name, defaults.get(name))


def _check(cfg: Any) -> None:
    """Check that `schedule_of` can use a config.

    Raises:
        ValueError: The config has no section MULTIGRID, has been used for multigrid already, or
            sets MULTIGRID.EVAL_FREQ to 0, by which PySlowFast divides.
    """
    if not hasattr(cfg, "MULTIGRID"):
        raise ValueError(
            "the config has no section MULTIGRID. Call add_multigrid_config(cfg) before you merge "
            "a recipe into it"
        )
    if get_key(cfg, "MULTIGRID.DEFAULT_B", 0):
        raise ValueError(
            f"MULTIGRID.DEFAULT_B is {cfg.MULTIGRID.DEFAULT_B}, so multigrid has already changed "
            "the config. Pass the config as it was loaded, and do not call the multigrid code of "
            "PySlowFast"
        )
    if get_key(cfg, "MULTIGRID.EVAL_FREQ", 1) < 1:
        raise ValueError(
            "MULTIGRID.EVAL_FREQ is 0, which only multigrid-train accepts. Set the number of "
            "evaluations in each phase, such as 1"
        )


def learning_rate_of(cfg: Any) -> LearningRate:
    """Return the learning-rate policy in the section SOLVER of a config (see `rate_from`)."""
    return rate_from(_values(cfg))
