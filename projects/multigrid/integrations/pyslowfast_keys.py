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
from multigrid.grids import SamplingOptions
from multigrid.learning_rate import CosineRate, LearningRate, SteppedRate, Warmup
from multigrid.phases import make_schedule
from multigrid.schedule import Phase, Schedule
from multigrid.shapes import CostPerClip, Shape

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

_RATES = ("SOLVER.BASE_LR", "SOLVER.WARMUP_START_LR", "SOLVER.COSINE_END_LR")
"""Keys whose values are learning rates."""


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


def schedule_from(
    value_of: Callable[[str], Any],
    num_videos: int,
    bn_size: int,
    learning_rate: LearningRate | None = None,
    cost_per_clip: CostPerClip | None = None,
) -> Schedule:
    """Build the schedule that the values of keys describe.

    Args:
        value_of: Function that returns the value of a key, such as "DATA.NUM_FRAMES".
        num_videos: Number of training videos.
        bn_size: Number of clips that share BN statistics, or 0 for the clips of each process.
        learning_rate: Learning-rate policy of the baseline. None means the policy in SOLVER.
        cost_per_clip: See `make_schedule`.

    Raises:
        ValueError: The values describe no valid schedule.
    """
    batch = value_of("TRAIN.BATCH_SIZE") * value_of("NUM_SHARDS")
    cycles = cycles_from(value_of)
    return make_schedule(
        Shape(batch, value_of("DATA.NUM_FRAMES"), value_of("DATA.TRAIN_CROP_SIZE")),
        num_videos,
        learning_rate or rate_from(value_of),
        cycles,
        bn_size=bn_size or None,
        size_divisor=value_of("MULTIGRID.SIZE_DIVISOR"),
        batch_rate_rule=value_of("SOLVER.BATCH_RATE_RULE"),
        equal_time=value_of("MULTIGRID.EQUAL_TIME"),
        warmup_in_epochs=cycles is not None and value_of("MULTIGRID.WARMUP_IN_EPOCHS"),
        fine_tuning=value_of("MULTIGRID.FINE_TUNING"),
        cost_per_clip=cost_per_clip,
    )


def cycles_from(value_of: Callable[[str], Any]) -> Cycles | None:
    """Return the long and short cycle, or None if both are off (see `schedule_from`)."""
    long_cycle, short_cycle = value_of("MULTIGRID.LONG_CYCLE"), value_of("MULTIGRID.SHORT_CYCLE")
    if not (long_cycle or short_cycle):
        return None
    factors = tuple((t, s) for t, s in value_of("MULTIGRID.LONG_CYCLE_FACTORS"))
    return Cycles(
        long_cycle=factors if long_cycle else (),
        short_cycle=tuple(value_of("MULTIGRID.SHORT_CYCLE_FACTORS")) if short_cycle else (),
        epoch_factor=value_of("MULTIGRID.EPOCH_FACTOR"),
        batch_exponent=value_of("MULTIGRID.BATCH_EXPONENT"),
        sampling=SamplingOptions(keep_field_of_view=value_of("MULTIGRID.KEEP_FIELD_OF_VIEW")),
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
    """Return the learning-rate policy in the section SOLVER of a config (see `rate_from`)."""
    return rate_from(_values(cfg))


def rate_from(value_of: Callable[[str], Any]) -> LearningRate:
    """Return the learning-rate policy of the keys SOLVER.* (see `schedule_from`).

    Supported values of LR_POLICY are `cosine`, `steps_with_relative_lrs` (LRS are multiples of
    BASE_LR) and `steps_with_lrs` (LRS are learning rates). Without LRS, each stage multiplies the
    learning rate of the previous stage by GAMMA.

    Raises:
        ValueError: LR_POLICY is not supported, or STEPS and LRS do not agree.
    """
    base, policy = value_of("SOLVER.BASE_LR"), value_of("SOLVER.LR_POLICY")
    end = float(value_of("SOLVER.MAX_EPOCH"))
    warmup = Warmup(value_of("SOLVER.WARMUP_START_LR"), value_of("SOLVER.WARMUP_EPOCHS"))
    if policy == "cosine":
        return CosineRate(
            base=base,
            epochs=end,
            end=value_of("SOLVER.COSINE_END_LR"),
            warmup=warmup,
            after_warmup=value_of("SOLVER.COSINE_AFTER_WARMUP"),
        )
    if policy not in ("steps_with_relative_lrs", "steps_with_lrs"):
        raise ValueError(
            f"SOLVER.LR_POLICY {policy} is not supported. Use cosine, steps_with_relative_lrs or "
            "steps_with_lrs, or pass learning_rate=CosineRate(...) to PySlowFastMultigrid"
        )
    steps, factors = value_of("SOLVER.STEPS"), value_of("SOLVER.LRS")
    # Ignore surplus LRS and steps at or after MAX_EPOCH, because no iteration uses them.
    starts = [float(step) for step in steps if step < end] or [0.0]
    gamma = value_of("SOLVER.GAMMA")
    rates = list(factors)[: len(starts)] or [gamma**j for j in range(len(starts))]
    if starts[0] != 0 or len(rates) != len(starts):
        raise ValueError(
            f"SOLVER.STEPS {list(steps)} must start with 0, and SOLVER.LRS {list(factors)} must "
            "have one value per step"
        )
    unit = 1.0 if policy == "steps_with_lrs" and factors else base
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
