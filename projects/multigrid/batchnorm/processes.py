"""Which numbers of processes can train a schedule, and the process groups that they need for it."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from multigrid.batchnorm.shared import arrangement, form_neighbours
from multigrid.schedule import Schedule
from multigrid.shapes import Shape

__all__ = ["check_processes", "form_groups", "possible_processes"]


def check_processes(schedule: Schedule, processes: int) -> None:
    """Raise ValueError, with the numbers that would do, if `processes` cannot train a schedule.

    Each mini-batch must divide over the processes, and each of its BN groups be some of the clips
    of one process, or all the clips of some neighbours.
    """
    for shape, bn_size in _batches(schedule):
        if shape.batch % processes:
            problem = f"does not divide over {processes} processes"
        elif _sharers(shape, bn_size, processes) is None:
            problem = (
                f"is {shape.batch // processes} clips on each of {processes} processes, which form "
                f"no BN groups of {bn_size}"
            )
        else:
            continue
        possible = ", ".join(map(str, possible_processes(schedule)))
        raise ValueError(
            f"a mini-batch of {shape.batch} clips ({shape}) {problem}; choose another batch or BN "
            f"size, or a number of processes that can train the schedule: {possible}"
        )


def possible_processes(schedule: Schedule) -> list[int]:
    """The numbers of processes that can train a schedule; see `check_processes`."""
    batches = _batches(schedule)
    most = min(shape.batch for shape, _ in batches)
    return [
        processes
        for processes in range(1, most + 1)
        if all(_sharers(shape, bn_size, processes) for shape, bn_size in batches)
    ]


def form_groups(schedule: Schedule, timeout: timedelta | None = None) -> None:
    """Form every process group over which BN of a schedule shares statistics, each once.

    Every process must call this before training. Without BN sizes, or with one process, there is
    nothing to form. `timeout` is that of `form_neighbours`.

    Raises:
        ValueError: the processes cannot train the schedule.
    """
    batches = _batches(schedule)
    if not (dist.is_available() and dist.is_initialized()) or not any(k for _, k in batches):
        return
    processes = dist.get_world_size()
    check_processes(schedule, processes)
    sharers = {_sharers(shape, size, processes) for shape, size in batches}
    for count in sorted(filter(None, sharers)):
        form_neighbours(count, timeout)


def _batches(schedule: Schedule) -> dict[tuple[Shape, int | None], None]:
    """The mini-batches that a training meets, with their BN sizes, in order of appearance."""
    return dict.fromkeys(
        pair for phase in schedule.phases for pair in zip(phase.shapes, phase.bn_sizes, strict=True)
    )


def _sharers(shape: Shape, bn_size: int | None, processes: int) -> int | None:
    """How many processes share a BN group; None if they cannot train the shape."""
    if shape.batch % processes:
        return None
    arranged = arrangement(shape.batch // processes, bn_size, processes)
    return None if arranged is None else arranged[1]
