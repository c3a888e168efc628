"""Numbers of processes and micro-batches for a schedule, and the process groups that BN needs."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from multigrid.batchnorm.shared import arrangement, form_bn_process_groups, is_distributed
from multigrid.errors import MultigridError
from multigrid.schedule import Schedule
from multigrid.shapes import Shape


def check_processes(schedule: Schedule, processes: int) -> None:
    """Check that a number of processes can train a schedule.

    The processes must divide each mini-batch evenly. Each BN group must be clips of one process, or
    all the clips of several neighbouring processes.

    Raises:
        ValueError: The processes cannot train the schedule. The message lists numbers that can.
    """
    for shape, bn_group_size in _batches(schedule):
        if _ranks_per_group(shape, bn_group_size, processes) is None:
            possible = ", ".join(map(str, possible_processes(schedule)))
            raise MultigridError(
                f"a mini-batch of {shape.batch} clips ({shape}) cannot be divided over {processes} "
                f"processes with BN groups of {bn_group_size or 'any number of'} clips. Choose "
                "another batch or BN group size, or a number of processes that can train the "
                "schedule: "
                f"{possible}"
            )


def possible_processes(schedule: Schedule) -> list[int]:
    """Return the numbers of processes that can train a schedule; see `check_processes`."""
    batches = _batches(schedule)
    most = min(shape.batch for shape, _ in batches)
    return [n for n in range(1, most + 1) if all(_ranks_per_group(*pair, n) for pair in batches)]


def check_accumulation(
    schedule: Schedule, processes: int, steps: int, has_batchnorm: bool = True
) -> None:
    """Check that a process has at least `steps` BN groups in each mini-batch, one per micro-batch.

    Args:
        schedule: The schedule to train.
        processes: Number of processes.
        steps: Number of micro-batches in a mini-batch.
        has_batchnorm: Whether the model has batch normalisation. Otherwise a clip is a group.

    Raises:
        ValueError: A mini-batch has fewer groups. The message says what to change.
    """
    for shape, size in _batches(schedule):
        clips = shape.batch // processes
        # Without groups, all clips of a process share their BN statistics.
        groups = max(1, clips // (size or clips)) if has_batchnorm else clips
        if groups < steps:
            raise MultigridError(
                f"a mini-batch of {shape} has {groups} {'BN groups' if has_batchnorm else 'clips'} "
                f"on each of {processes} process(es), which cannot be split into {steps} "
                f"micro-batches. Use at most {groups} micro-batches, a larger batch, a smaller "
                "bn_group_size or fewer processes"
            )


def form_groups(schedule: Schedule, timeout: timedelta | None = None) -> None:
    """Form the process groups that share BN statistics in a schedule.

    Every process must call this before training. It does nothing on a single process, or if the
    schedule has no BN group sizes.

    Args:
        schedule: The schedule to train.
        timeout: As in `form_bn_process_groups`.

    Raises:
        ValueError: The processes cannot train the schedule.
    """
    if not is_distributed():
        return
    processes = dist.get_world_size()
    check_processes(schedule, processes)
    counts = {_ranks_per_group(*batch, processes) for batch in _batches(schedule)}
    for count in sorted(filter(None, counts)):
        form_bn_process_groups(count, timeout)


def _batches(schedule: Schedule) -> dict[tuple[Shape, int | None], None]:
    """Return the distinct (shape, BN group size) pairs of a schedule, in order of appearance."""
    return dict.fromkeys(
        pair
        for phase in schedule.phases
        for pair in zip(phase.shapes, phase.bn_group_sizes, strict=True)
    )


def _ranks_per_group(shape: Shape, bn_group_size: int | None, processes: int) -> int | None:
    """Return how many processes share a BN group, or None if they cannot train the shape."""
    if shape.batch % processes:
        return None
    arranged = arrangement(shape.batch // processes, bn_group_size, processes)
    return arranged and arranged[1]
