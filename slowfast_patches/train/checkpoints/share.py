"""What the main process has read, in all processes; what all have, in one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from slowfast_patches.utils.distributed import World, patient_group, sum_over_ranks

__all__ = ["from_every_rank", "share"]

T = TypeVar("T")


def share(content: T, world: World) -> T:
    """The main process's `content` in every process; that of the others is not looked at.

    It is made of dicts, lists, tuples and what can be pickled. Tensors in it are sent as such, and
    are on the CPU in all processes. All processes must call this in the same order.
    """
    if world.size == 1:
        return content
    tensors: list[Tensor] = []
    with patient_group() as group:
        skeleton = [_without(content, tensors) if world.is_main else None]
        dist.broadcast_object_list(skeleton, src=0, group=group)
        return cast(T, _with(skeleton[0], tensors, group))


def from_every_rank(values: Tensor, world: World) -> Tensor:
    """The (N,) tensors of all processes as rows of a (processes, N) one, on the CPU."""
    table = values.new_zeros(world.size, len(values), device=world.device)
    table[world.rank] = values
    return sum_over_ranks(table).cpu()


@dataclass(frozen=True)
class _Place:
    """Of a tensor that is sent apart."""

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype


def _without(tree: Any, tensors: list[Tensor]) -> Any:
    """A tree with places for its tensors, which are put into a list."""
    if isinstance(tree, Tensor):
        tensors.append(tree.detach().cpu().contiguous())
        return _Place(len(tensors) - 1, tuple(tree.shape), tree.dtype)
    if isinstance(tree, dict):
        return {key: _without(value, tensors) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)([_without(value, tensors) for value in tree])
    return tree


def _with(tree: Any, tensors: list[Tensor], group: Any) -> Any:
    """The tree again, its tensors sent and received in order."""
    if isinstance(tree, _Place):
        if len(tensors) == tree.number:
            tensors.append(torch.empty(tree.shape, dtype=tree.dtype))
        tensor = tensors[tree.number]
        if tensor.numel():
            dist.broadcast(tensor.reshape(-1).view(torch.uint8), src=0, group=group)
        return tensor
    if isinstance(tree, dict):
        return {key: _with(value, tensors, group) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)([_with(value, tensors, group) for value in tree])
    return tree
