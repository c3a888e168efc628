"""Who this process is among the processes of a run."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["World", "sum_over_ranks"]


@dataclass(frozen=True)
class World:
    """The rank of this process, the number of processes, and the device it computes on."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0


def sum_over_ranks(values: Tensor) -> Tensor:
    """The sum of a tensor over all processes, in place; the tensor itself with one process."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(values)
    return values
