"""Build a multigrid schedule from a PySlowFast config, and change keys of the config.

A config is any object with the sections and keys of PySlowFast. It may come from PySlowFast 1.0, a
later release or a fork.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from multigrid.cycles import PAPER, Cycles
from multigrid.learning_rate import CosineRate, LearningRate, SteppedRate, Warmup
from multigrid.phases import make_schedule
from multigrid.schedule import Phase, Schedule
from multigrid.shapes import Shape

logger = logging.getLogger(__name__)

_OPTIONS: Mapping[str, Any] = {
    "SIZE_DIVISOR": 1,
    "EQUAL_TIME": False,
    "WARMUP_IN_EPOCHS": True,
    "FINE_TUNING": True,
}
"""Keys that no release of PySlowFast has. They are options of `make_schedule`."""

_DEFAULTS: Mapping[str, Any] = {
    **_OPTIONS,
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
"""Default values of the keys in the section MULTIGRID."""

CYCLES_OFF: Mapping[str, Any] = {
    "MULTIGRID.LONG_CYCLE": False,
    "MULTIGRID.SHORT_CYCLE": False,
    "MULTIGRID.LONG_CYCLE_SAMPLING_RATE": 0,
    "MULTIGRID.DEFAULT_B": 0,
    "MULTIGRID.DEFAULT_T": 0,
    "MULTIGRID.DEFAULT_S": 0,
}
"""Values that turn off the multigrid code in the data sets and loaders of later releases."""

_RATES = ("SOLVER.BASE_LR", "SOLVER.WARMUP_START_LR", "SOLVER.COSINE_END_LR")
"""Keys whose values are learning rates."""


def get_key(cfg: Any, name: str, default: Any = None) -> Any:
    """Return the value of a key such as "DATA.NUM_FRAMES", or `default` if there is no such key."""
    section, _, key = name.partition(".")
    return getattr(getattr(cfg, section, None), key, default)


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
    _add(cfg, "SOLVER", {"BATCH_RATE_RULE": "linear"})


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
    cycles = cfg.MULTIGRID
    base = Shape(
        cfg.TRAIN.BATCH_SIZE * cfg.NUM_SHARDS, cfg.DATA.NUM_FRAMES, cfg.DATA.TRAIN_CROP_SIZE
    )
    rate = learning_rate_of(cfg) if learning_rate is None else learning_rate
    if not uses_multigrid(cfg):
        return make_schedule(base, num_videos, rate, cycles=None, bn_size=None)
    options = {key.lower(): getattr(cycles, key, value) for key, value in _OPTIONS.items()}
    long_cycle = tuple((t, s) for t, s in cycles.LONG_CYCLE_FACTORS)
    return make_schedule(
        base,
        num_videos,
        rate,
        Cycles(
            long_cycle=long_cycle if cycles.LONG_CYCLE else (),
            short_cycle=tuple(cycles.SHORT_CYCLE_FACTORS) if cycles.SHORT_CYCLE else (),
            epoch_factor=cycles.EPOCH_FACTOR,
            batch_exponent=get_key(cfg, "MULTIGRID.BATCH_EXPONENT", 1.0),
        ),
        bn_size=cycles.BN_BASE_SIZE or None,
        batch_rate_rule=get_key(cfg, "SOLVER.BATCH_RATE_RULE", "linear"),
        **options,
    )


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
    """Return the learning-rate policy in the section SOLVER.

    Supported values of LR_POLICY are `cosine`, `steps_with_relative_lrs` (LRS are multiples of
    BASE_LR) and `steps_with_lrs` (LRS are learning rates).

    Raises:
        ValueError: LR_POLICY is not supported, or STEPS and LRS do not agree.
    """
    solver = cfg.SOLVER
    end = float(solver.MAX_EPOCH)
    warmup = Warmup(solver.WARMUP_START_LR, solver.WARMUP_EPOCHS)
    if solver.LR_POLICY == "cosine":
        return CosineRate(
            base=solver.BASE_LR,
            epochs=end,
            end=get_key(cfg, "SOLVER.COSINE_END_LR", 0.0),
            warmup=warmup,
            after_warmup=get_key(cfg, "SOLVER.COSINE_AFTER_WARMUP", False),
        )
    if solver.LR_POLICY not in ("steps_with_relative_lrs", "steps_with_lrs"):
        raise ValueError(
            f"SOLVER.LR_POLICY {solver.LR_POLICY} is not supported. Use cosine, "
            "steps_with_relative_lrs or steps_with_lrs, or pass learning_rate=CosineRate(...) to "
            "PySlowFastMultigrid"
        )
    # Ignore surplus LRS and steps at or after MAX_EPOCH, because no iteration uses them.
    starts = [float(step) for step in solver.STEPS if step < end] or [0.0]
    rates = list(solver.LRS)[: len(starts)] or [solver.GAMMA**j for j in range(len(starts))]
    if starts[0] != 0 or len(rates) != len(starts):
        raise ValueError(
            f"SOLVER.STEPS {list(solver.STEPS)} must start with 0, and SOLVER.LRS "
            f"{list(solver.LRS)} must have one value per step"
        )
    unit = 1.0 if solver.LR_POLICY == "steps_with_lrs" and solver.LRS else solver.BASE_LR
    return SteppedRate((*starts[1:], end), tuple(unit * rate for rate in rates), warmup)


def phase_keys(phase: Phase, num_shards: int, value_of: Callable[[str], Any]) -> dict[str, Any]:
    """Return the shape and the learning rates of a phase, as config values by full key.

    Args:
        phase: Phase of the schedule.
        num_shards: Number of machines. TRAIN.BATCH_SIZE is the batch size of one machine.
        value_of: Function that returns the baseline's value of a key.
    """
    shape = phase.base_shape
    return {
        "TRAIN.BATCH_SIZE": shape.batch // num_shards,
        "DATA.NUM_FRAMES": shape.frames,
        "DATA.TRAIN_CROP_SIZE": shape.crop,
        **{key: value_of(key) * phase.lr_scale for key in _RATES},
    }


def phase_evaluations(phase: Phase, times: int) -> set[int]:
    """Return when a phase has one of `times` evaluations, as numbers of finished iterations."""
    parts = (phase.iterations * (k + 1) / times for k in range(times))
    return {phase.start + max(1, round(part)) for part in parts}
