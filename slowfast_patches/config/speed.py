"""Switches of speed and memory that do not go with each other, or with what trains."""

from __future__ import annotations

import math

from multigrid import Schedule
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.utils.report import format_list

__all__ = ["check_speed", "check_speed_of_schedule", "possible_parts"]


def check_speed(recipe: Recipe, world_size: int) -> None:
    """Refuse what cannot take effect.

    Raises:
        ValueError: names the keys, and says what to write instead.
    """
    if recipe.solver.fused and recipe.solver.optimizing_method == "lars":
        raise ValueError(
            "SOLVER.FUSED True: there is no fused lars; set SOLVER.FUSED False, or "
            "SOLVER.OPTIMIZING_METHOD sgd, adam or adamw"
        )
    if recipe.train.compile and recipe.model.act_checkpoint:
        raise ValueError(
            "TRAIN.COMPILE True and MODEL.ACT_CHECKPOINT True: a compiled network decides by "
            "itself what it keeps for the backward pass; set one of them to False"
        )
    if recipe.train.cuda_graphs and recipe.num_gpus == 0:
        raise ValueError(
            "TRAIN.CUDA_GRAPHS True needs a GPU, and NUM_GPUS is 0; set TRAIN.CUDA_GRAPHS False"
        )
    if recipe.train.cuda_graphs and world_size > 1:
        raise ValueError(
            f"TRAIN.CUDA_GRAPHS True is for one process, not {world_size}: gradients are exchanged "
            "while they are computed, which no graph of one process holds; set it to False"
        )

    if recipe.train.cuda_graphs and recipe.solver.accumulation_steps > 1:
        raise ValueError(
            f"TRAIN.CUDA_GRAPHS True and SOLVER.ACCUMULATION_STEPS "
            f"{recipe.solver.accumulation_steps}:"
            " a graph holds the passes of a whole mini-batch; set the one to False or the other to "
            "1"
        )


def check_speed_of_schedule(recipe: Recipe, schedule: Schedule, world_size: int) -> None:
    """Refuse what cannot take effect at a shape of a schedule.

    Raises:
        ValueError: TRAIN.COMPILE is on and processes share BN statistics; a process's BN groups do
            not divide into SOLVER.ACCUMULATION_STEPS parts.
    """
    if recipe.solver.accumulation_steps > 1:
        _check_parts(recipe, schedule, world_size)
    if not recipe.train.compile:
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


def possible_parts(schedule: Schedule, world_size: int) -> list[int]:
    """The numbers of parts that a process's BN groups divide into at every shape of a schedule."""
    groups = [
        max(1, shape.batch // world_size // size) if size else 1
        for phase in schedule.phases
        for shape, size in zip(phase.shapes, phase.bn_sizes, strict=True)
    ]
    most = math.gcd(*groups)
    return [parts for parts in range(1, most + 1) if most % parts == 0]


def _check_parts(recipe: Recipe, schedule: Schedule, world_size: int) -> None:
    parts = recipe.solver.accumulation_steps
    for phase in schedule.phases:
        for shape, size in zip(phase.shapes, phase.bn_sizes, strict=True):
            if size is None:
                raise ValueError(
                    f"SOLVER.ACCUMULATION_STEPS {parts}: BN is over all the clips that a process "
                    "has, and would be over fewer; set BN.GROUP_SIZE to the clips that share "
                    f"statistics, at most {shape.batch // world_size // parts} here"
                )
            clips = shape.batch // world_size
            if clips % (size * parts):
                fitting = format_list(possible_parts(schedule, world_size), "or")
                raise ValueError(
                    f"SOLVER.ACCUMULATION_STEPS {parts}: at {shape}, each of {world_size} "
                    f"process(es) has {clips} clips in BN groups of {size}, which do not divide "
                    f"into {parts} parts of whole groups; set ACCUMULATION_STEPS to {fitting}, or "
                    "train with a larger TRAIN.BATCH_SIZE, on fewer processes, or with smaller BN "
                    "groups (BN.GROUP_SIZE, with a cycle MULTIGRID.BN_BASE_SIZE)"
                )
