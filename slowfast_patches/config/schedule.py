"""The schedule that a config asks for, and the config as it is at an iteration."""

from __future__ import annotations

from fvcore.common.config import CfgNode

from multigrid import (
    CosineRate,
    LearningRate,
    Schedule,
    Shape,
    SteppedRate,
    Warmup,
    check_processes,
    make_schedule,
)
from slowfast_patches.config.speed import check_speed_of_schedule

__all__ = [
    "base_shape",
    "check_world_size",
    "config_at",
    "groups_batchnorm",
    "learning_rate_from_config",
    "rates_of_batch",
    "schedule_from_config",
    "uses_multigrid",
    "without_multigrid",
]


def uses_multigrid(cfg: CfgNode) -> bool:
    """Whether a config asks for the long cycle, the short cycle, or both."""
    return bool(cfg.MULTIGRID.LONG_CYCLE or cfg.MULTIGRID.SHORT_CYCLE)


def without_multigrid(cfg: CfgNode) -> CfgNode:
    """The baseline of a config: the same recipe with both cycles off."""
    if not uses_multigrid(cfg):
        return cfg
    cfg = cfg.clone()
    cfg.defrost()
    cfg.MULTIGRID.LONG_CYCLE = cfg.MULTIGRID.SHORT_CYCLE = False
    cfg.freeze()
    return cfg


def groups_batchnorm(cfg: CfgNode) -> bool:
    """Whether BN statistics are over a given number of clips, and not those that a process has."""
    return uses_multigrid(cfg) or bool(cfg.BN.GROUP_SIZE)


def base_shape(cfg: CfgNode) -> Shape:
    """The baseline's mini-batch over all machines: TRAIN.BATCH_SIZE is one machine's."""
    batch = cfg.TRAIN.BATCH_SIZE * cfg.NUM_SHARDS
    return Shape(batch, cfg.DATA.NUM_FRAMES, cfg.DATA.TRAIN_CROP_SIZE)


def rates_of_batch(cfg: CfgNode) -> CfgNode:
    """The config with the rates that SOLVER.REFERENCE_BATCH_SIZE gives its mini-batch written out.

    BASE_LR and COSINE_END_LR belong to that many clips; those of the result are multiplied by what
    the baseline's global mini-batch is of them (linear scaling rule, Goyal et al., 2017, section
    2.1), and its REFERENCE_BATCH_SIZE is 0. WARMUP_START_LR stays. Where the key is 0 already, the
    result is the config itself.
    """
    clips = cfg.SOLVER.REFERENCE_BATCH_SIZE
    if clips <= 0:  # below 0: `check_config` refuses it
        return cfg
    factor, cfg = base_shape(cfg).batch / clips, cfg.clone()
    cfg.defrost()
    cfg.SOLVER.BASE_LR *= factor
    cfg.SOLVER.COSINE_END_LR *= factor
    cfg.SOLVER.REFERENCE_BATCH_SIZE = 0
    cfg.freeze()
    return cfg


def learning_rate_from_config(cfg: CfgNode) -> LearningRate:
    """The baseline's learning-rate policy, at the rates of its mini-batch (`rates_of_batch`).

    Steps take their rates from SOLVER.LRS, relative to BASE_LR, or, where LRS is empty, from powers
    of SOLVER.GAMMA.
    """
    solver = rates_of_batch(cfg).SOLVER
    scale = cfg.NUM_SHARDS if solver.BASE_LR_SCALE_NUM_SHARDS else 1
    warmup = Warmup(solver.WARMUP_START_LR * scale, float(solver.WARMUP_EPOCHS))
    if solver.LR_POLICY == "cosine":
        return CosineRate(
            base=solver.BASE_LR * scale,
            epochs=float(solver.MAX_EPOCH),
            end=solver.COSINE_END_LR * scale,
            warmup=warmup,
        )
    if solver.LR_POLICY != "steps_with_relative_lrs":
        raise ValueError(
            f"SOLVER.LR_POLICY {solver.LR_POLICY!r} is not known; use 'steps_with_relative_lrs' "
            "or 'cosine'"
        )
    starts = tuple(float(step) for step in solver.STEPS) or (0.0,)
    factors = tuple(solver.LRS) or tuple(solver.GAMMA**j for j in range(len(starts)))
    return SteppedRate(
        ends=(*starts[1:], float(solver.MAX_EPOCH)),
        rates=tuple(solver.BASE_LR * scale * factor for factor in factors),
        warmup=warmup,
    )


def schedule_from_config(cfg: CfgNode, num_videos: int) -> Schedule:
    """The schedule of a config for a training set of `num_videos` videos.

    With both cycles off it is the baseline recipe, and BN is left to each process's batch unless
    BN.GROUP_SIZE says otherwise.

    Raises:
        ValueError: the recipe has no schedule; the message says what would.
    """
    multigrid = cfg.MULTIGRID
    long_cycle = [tuple(factors) for factors in multigrid.LONG_CYCLE_FACTORS]
    return make_schedule(
        base_shape(cfg),
        num_videos,
        learning_rate_from_config(cfg),
        epoch_factor=multigrid.EPOCH_FACTOR if uses_multigrid(cfg) else 1.0,
        long_cycle=long_cycle if multigrid.LONG_CYCLE else (),
        short_cycle=multigrid.SHORT_CYCLE_FACTORS if multigrid.SHORT_CYCLE else (),
        bn_size=multigrid.BN_BASE_SIZE if uses_multigrid(cfg) else cfg.BN.GROUP_SIZE or None,
        size_divisor=multigrid.SIZE_DIVISOR,
    )


def check_world_size(cfg: CfgNode, schedule: Schedule, world_size: int) -> None:
    """Raise ValueError if `world_size` processes cannot train a config's schedule.

    The message has the numbers of processes that can, and the keys that decide it.
    """
    try:
        check_processes(schedule, world_size)
    except ValueError as error:
        bn_size = f"BN.GROUP_SIZE {cfg.BN.GROUP_SIZE}"
        if uses_multigrid(cfg):
            bn_size = f"MULTIGRID.BN_BASE_SIZE {cfg.MULTIGRID.BN_BASE_SIZE}"
        raise ValueError(
            f"{error} (TRAIN.BATCH_SIZE {cfg.TRAIN.BATCH_SIZE}, NUM_SHARDS {cfg.NUM_SHARDS}, "
            f"{bn_size})"
        ) from None
    check_speed_of_schedule(cfg, schedule, world_size)


def config_at(cfg: CfgNode, schedule: Schedule, iteration: int) -> CfgNode:
    """A copy of the config with the solver and data keys of the long-cycle shape in force.

    Its rates are those trained with: `rates_of_batch`, scaled for the shape. It is what gets logged
    and stored with checkpoints; nothing reads it back to train.
    """
    cfg = rates_of_batch(cfg)
    phase = schedule.phases[schedule.phase_at(iteration)]
    shape, at = phase.base_shape, cfg.clone()
    at.defrost()
    at.TRAIN.BATCH_SIZE = shape.batch // cfg.NUM_SHARDS
    at.DATA.NUM_FRAMES = shape.frames
    at.DATA.TRAIN_CROP_SIZE = shape.crop
    at.SOLVER.BASE_LR = cfg.SOLVER.BASE_LR * phase.lr_scale
    at.SOLVER.WARMUP_START_LR = cfg.SOLVER.WARMUP_START_LR * phase.lr_scale
    at.SOLVER.COSINE_END_LR = cfg.SOLVER.COSINE_END_LR * phase.lr_scale
    if phase.bn_sizes[-1] is not None:
        at.BN.NUM_SPLITS = shape.batch // phase.bn_sizes[-1]
    at.freeze()
    return at
