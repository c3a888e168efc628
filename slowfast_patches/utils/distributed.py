"""Rank, world size and collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from slowfast_patches.utils.signals import TrainingInterruptedError

__all__ = [
    "World",
    "from_main",
    "gathered",
    "max_over_ranks",
    "sum_over_ranks",
    "wait_for_all",
]

T = TypeVar("T")

_PATIENCE = timedelta(days=7)
"""A process waits for another for 10 to 30 minutes by default: less than some work takes, such as
reading and checking a large file."""


@dataclass(frozen=True)
class World:
    """The rank of this process, the number of processes, and the device it computes on.

    local_rank: the number of this process on its machine.
    """

    rank: int
    size: int
    device: torch.device
    local_rank: int = 0

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0


def _alone() -> bool:
    return not dist.is_initialized() or dist.get_world_size() == 1


def sum_over_ranks(values: Tensor) -> Tensor:
    """The sum of a tensor over all processes, in place; the tensor itself with one process."""
    if not _alone():
        dist.all_reduce(values)
    return values


def max_over_ranks(values: Tensor) -> Tensor:
    """The largest of each value over all processes, in place, like `sum_over_ranks`."""
    if not _alone():
        dist.all_reduce(values, dist.ReduceOp.MAX)
    return values


def gathered(content: T) -> list[T]:
    """Gather an object of each process, by rank, in all of them; it is pickled."""
    if _alone():
        return [content]
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, content)
    return gathered


def from_main(make: Callable[[], T]) -> T:
    """Broadcast what `make()` returns in the main process to all of them; it is pickled.

    All processes must call this in the same order. The others wait however long it takes.

    Raises:
        TrainingInterruptedError: `make()` raised it; in all processes.
    """
    if _alone():
        return make()
    with _patient_group() as group:
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
def _patient_group() -> Iterator[dist.ProcessGroup]:
    """All processes as a group whose collectives, of tensors on the CPU, wait for days.

    All processes must call this in the same order. Where the body fails, the group stays until the
    process ends: the others wait for the report, and do not fail by a closed connection.
    """
    group = dist.new_group(backend="gloo", timeout=_PATIENCE)
    yield group
    dist.destroy_process_group(group)


def wait_for_all() -> None:
    """Return once all processes have come here, however long it takes."""
    with _patient_group() as group:
        dist.barrier(group)
