"""Rank and world size of a process, and collective operations over all processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from slowfast_patches.utils.interruption import TrainingInterruptedError

T = TypeVar("T")

_PATIENCE = timedelta(days=7)
"""Timeout of collectives that wait while one process does slow work, such as checking a large file.
torch's default timeouts of 10 to 30 minutes are too short for this."""


@dataclass(frozen=True)
class World:
    """Rank and device of this process, and the number of processes.

    Attributes:
        rank: Rank of this process.
        size: World size.
        device: Device on which this process trains.
        local_rank: Rank of this process among the processes on the same machine.
    """

    rank: int
    size: int
    device: torch.device
    local_rank: int = 0

    @property
    def is_main(self) -> bool:
        """Whether this is the main process (rank 0). Only the main process writes files."""
        return self.rank == 0


def is_alone() -> bool:
    """Return whether this is the only process of the run."""
    return not dist.is_initialized() or dist.get_world_size() == 1


def sum_over_ranks(values: Tensor) -> Tensor:
    """Sum a tensor over all processes, in place, and return it."""
    if not is_alone():
        dist.all_reduce(values)
    return values


def max_over_ranks(values: Tensor) -> Tensor:
    """Take the element-wise maximum of a tensor over all processes, in place, and return it."""
    if not is_alone():
        dist.all_reduce(values, dist.ReduceOp.MAX)
    return values


def gather_objects(content: T) -> list[T]:
    """Gather a picklable object from each process.

    Returns:
        The objects in rank order. All processes get this list.
    """
    if is_alone():
        return [content]
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, content)
    return gathered


def broadcast_from_main(make: Callable[[], T]) -> T:
    """Call `make()` in the main process, and return the result in all processes.

    All processes must call this function, even if they do not use the result. The result must be
    picklable. `make()` may take up to 7 days.

    Raises:
        TrainingInterruptedError: `make()` raised this error. All processes raise it.
    """
    if is_alone():
        return make()
    with _temporary_group(_PATIENCE) as group:
        made: list[T | TrainingInterruptedError | None] = [None]
        if dist.get_rank() == 0:
            try:
                made = [make()]
            except TrainingInterruptedError as error:
                made = [error]
        dist.broadcast_object_list(made, src=0, group=group)
    if isinstance(made[0], TrainingInterruptedError):
        raise made[0]
    return cast(T, made[0])


@contextmanager
def _temporary_group(timeout: timedelta) -> Iterator[dist.ProcessGroup]:
    """Create a gloo group of all processes for the `with` statement.

    All processes must call this. If the body raises an error, the group is not destroyed. The other
    processes would otherwise report a closed connection before this process reports its error.
    """
    group = dist.new_group(backend="gloo", timeout=timeout)
    yield group
    dist.destroy_process_group(group)


def wait_for_all(timeout: timedelta) -> None:
    """Wait until all processes have called this function."""
    with _temporary_group(timeout) as group:
        dist.barrier(group)
