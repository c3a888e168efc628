"""Build a multigrid schedule from a PySlowFast config, and change keys of the config.

A config is any object with the sections and keys of PySlowFast. It may come from PySlowFast 1.0, a
later release or a fork.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from multigrid.cycles import PAPER, Cycles
from multigrid.learning_rate import CosineRate, LearningRate, SteppedRate, Warmup
from multigrid.schedule import Schedule, make_schedule
from multigrid.shapes import Shape

__all__ = [
    "add_multigrid_config",
    "changed",
    "get_key",
    "learning_rate_of",
    "schedule_of",
    "set_keys",
]

_OPTIONS: Mapping[str, Any] = {
    "SIZE_DIVISOR": 1,
    "EQUAL_TIME": False,
    "WARMUP_IN_EPOCHS": False,
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
    """Add the section MULTIGRID to a config, or the keys that this section lacks.

    Call this before you merge a recipe into the config.
    """
    section = getattr(cfg, "MULTIGRID", None) or type(cfg)()
    for key, value in _DEFAULTS.items():
        if not hasattr(section, key):
            setattr(section, key, copy.deepcopy(value))
    cfg.MULTIGRID = section


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
    if not (cycles.LONG_CYCLE or cycles.SHORT_CYCLE):
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
        ValueError: The config has no section MULTIGRID, uses an unsupported BN type, or was changed
            by the multigrid code of a later release.
    """
    if not hasattr(cfg, "MULTIGRID"):
        raise ValueError(
            "the config has no section MULTIGRID. Call add_multigrid_config(cfg) before you merge "
            "a recipe into it"
        )
    if get_key(cfg, "MULTIGRID.DEFAULT_B", 0):
        raise ValueError(
            f"MULTIGRID.DEFAULT_B is {cfg.MULTIGRID.DEFAULT_B}, so the multigrid code of a later "
            "release has changed the config. Pass the config as it was loaded, and do not use that "
            "code"
        )
    norm = get_key(cfg, "BN.NORM_TYPE", "batchnorm")
    if norm != "batchnorm":
        raise ValueError(
            f"BN.NORM_TYPE is {norm}, which cannot normalise over MULTIGRID.BN_BASE_SIZE clips at "
            "every shape. Set BN.NORM_TYPE batchnorm. The method convert then replaces the layers"
        )


def learning_rate_of(cfg: Any) -> LearningRate:
    """Return the learning-rate policy in the section SOLVER.

    Supported values of LR_POLICY are `cosine`, `steps_with_relative_lrs` (LRS are multiples of
    BASE_LR) and `steps_with_lrs` (LRS are learning rates).

    Raises:
        ValueError: LR_POLICY is not supported, or STEPS and LRS do not agree.
    """
    solver = cfg.SOLVER
    policy = solver.LR_POLICY
    end = float(solver.MAX_EPOCH)
    warmup = Warmup(solver.WARMUP_START_LR, solver.WARMUP_EPOCHS)
    if get_key(cfg, "SOLVER.COSINE_AFTER_WARMUP", False):
        policy += " with COSINE_AFTER_WARMUP True"
    if policy == "cosine":
        return CosineRate(solver.BASE_LR, end, get_key(cfg, "SOLVER.COSINE_END_LR", 0.0), warmup)
    if solver.LR_POLICY not in ("steps_with_relative_lrs", "steps_with_lrs"):
        raise ValueError(
            f"SOLVER.LR_POLICY {policy} is not supported. Use cosine, steps_with_relative_lrs or "
            "steps_with_lrs, or pass learning_rate=CosineRate(...) to PySlowFastMultigrid"
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
