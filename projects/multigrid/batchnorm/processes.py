"""Numbers of processes and micro-batches for a schedule, and the process groups that BN needs."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from multigrid.batchnorm.shared import arrangement, form_bn_process_groups
from multigrid.schedule import Schedule
from multigrid.shapes import Shape

__all__ = ["check_accumulation", "check_processes", "form_groups", "possible_processes"]


def check_processes(schedule: Schedule, processes: int) -> None:
    """Check that a number of processes can train a schedule.

    The processes must divide each mini-batch evenly. Each BN group must be clips of one process, or
    all the clips of several neighbouring processes.

    Raises:
        ValueError: They cannot. The message lists the numbers of processes that can.
    """
    for shape, bn_size in _batches(schedule):
        if shape.batch % processes:
            problem = f"does not divide over {processes} processes"
        elif _ranks_per_group(shape, bn_size, processes) is None:
            problem = (
                f"is {shape.batch // processes} clips on each of {processes} processes, which form "
                f"no BN groups of {bn_size}"
            )
        else:
            continue
        possible = ", ".join(map(str, possible_processes(schedule)))
        raise ValueError(
            f"a mini-batch of {shape.batch} clips ({shape}) {problem}. Choose another batch or BN "
            f"size, or a number of processes that can train the schedule: {possible}"
        )


def possible_processes(schedule: Schedule) -> list[int]:
    """Return the numbers of processes that can train a schedule; see `check_processes`."""
    batches = _batches(schedule)
    most = min(shape.batch for shape, _ in batches)
    return [
        processes
        for processes in range(1, most + 1)
        if all(_ranks_per_group(shape, bn_size, processes) for shape, bn_size in batches)
    ]


def check_accumulation(
    schedule: Schedule, processes: int, steps: int, has_batchnorm: bool = True
) -> None:
    """Check that each mini-batch of a process has a BN group for each of `steps` micro-batches.

    Args:
        schedule: The schedule to train.
        processes: Number of processes.
        steps: Number of micro-batches in a mini-batch.
        has_batchnorm: Whether the model has batch normalisation. Otherwise a clip is a group.

    Raises:
        ValueError: There are fewer groups. The message says what to change.
    """
    if steps == 1:
        return
    batches = _batches(schedule)
    if has_batchnorm and any(size is None for _, size in batches):
        raise ValueError(
            f"{steps} micro-batches would change the BN statistics, which are computed over all "
            "clips of a process. Set bn_size, the number of clips that share BN statistics"
        )
    groups, shape = min(
        (shape.batch // processes // (size if size and has_batchnorm else 1), shape)
        for shape, size in batches
    )
    if groups < steps:
        kind = "whole BN groups" if has_batchnorm else "clips"
        raise ValueError(
            f"a mini-batch of {shape} has {groups} {kind} on each of {processes} process(es), "
            f"which cannot be split into {steps} micro-batches. Use at most {max(1, groups)} "
            f"micro-batches, a larger batch{', smaller BN groups' * has_batchnorm} or fewer "
            "processes"
        )


def form_groups(schedule: Schedule, timeout: timedelta | None = None) -> None:
    """Form the process groups that share BN statistics in a schedule.

    Every process must call this before training. It does nothing on a single process, or if the
    schedule has no BN sizes.

    Args:
        schedule: The schedule to train.
        timeout: As in `form_bn_process_groups`.

    Raises:
        ValueError: The processes cannot train the schedule.
    """
    batches = _batches(schedule)
    if not (dist.is_available() and dist.is_initialized()) or not any(k for _, k in batches):
        return
    processes = dist.get_world_size()
    check_processes(schedule, processes)
    ranks_per_group = {_ranks_per_group(shape, size, processes) for shape, size in batches}
    for count in sorted(filter(None, ranks_per_group)):
        form_bn_process_groups(count, timeout)


def _batches(schedule: Schedule) -> dict[tuple[Shape, int | None], None]:
    """Return the distinct (shape, BN size) pairs of a schedule, in order of first appearance."""
    return dict.fromkeys(
        pair for phase in schedule.phases for pair in zip(phase.shapes, phase.bn_sizes, strict=True)
    )


def _ranks_per_group(shape: Shape, bn_size: int | None, processes: int) -> int | None:
    """Return how many processes share a BN group, or None if they cannot train the shape."""
    if shape.batch % processes:
        return None
    arranged = arrangement(shape.batch // processes, bn_size, processes)
    return None if arranged is None else arranged[1]
