"""Switches of speed and memory that do not go with each other, or with what trains."""

from __future__ import annotations

from fvcore.common.config import CfgNode

from multigrid import Schedule

__all__ = ["check_speed", "check_speed_of_schedule"]


def check_speed(cfg: CfgNode, world_size: int) -> None:
    """Refuse what cannot take effect.

    Raises:
        ValueError: names the keys, and says what to write instead.
    """
    if cfg.SOLVER.FUSED and cfg.SOLVER.OPTIMIZING_METHOD == "lars":
        raise ValueError(
            "SOLVER.FUSED True: there is no fused lars; set SOLVER.FUSED False, or "
            "SOLVER.OPTIMIZING_METHOD sgd or adam"
        )
    if cfg.TRAIN.COMPILE and cfg.MODEL.ACT_CHECKPOINT:
        raise ValueError(
            "TRAIN.COMPILE True and MODEL.ACT_CHECKPOINT True: a compiled network decides by "
            "itself what it keeps for the backward pass; set one of them to False"
        )
    if cfg.TRAIN.CUDA_GRAPHS and cfg.NUM_GPUS == 0:
        raise ValueError(
            "TRAIN.CUDA_GRAPHS True needs a GPU, and NUM_GPUS is 0; set TRAIN.CUDA_GRAPHS False"
        )
    if cfg.TRAIN.CUDA_GRAPHS and world_size > 1:
        raise ValueError(
            f"TRAIN.CUDA_GRAPHS True is for one process, not {world_size}: gradients are exchanged "
            "while they are computed, which no graph of one process holds; set it to False"
        )


def check_speed_of_schedule(cfg: CfgNode, schedule: Schedule, world_size: int) -> None:
    """Raise ValueError if TRAIN.COMPILE is on and processes share BN statistics at a shape."""
    if not cfg.TRAIN.COMPILE:
        return
    for phase in schedule.phases:
        for shape, size in zip(phase.shapes, phase.bn_sizes, strict=True):
            if size is not None and size > shape.batch // world_size:
                raise ValueError(
                    f"TRAIN.COMPILE True: at {shape}, each of {world_size} processes has "
                    f"{shape.batch // world_size} clips, and BN is over {size}: statistics that "
                    "processes share cannot be part of a compiled network; set TRAIN.COMPILE "
                    "False, or train on fewer processes or with a larger TRAIN.BATCH_SIZE"
                )
