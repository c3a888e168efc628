"""Running statistics of batch normalisation where a training is stopped between milestones, and
where a mini-batch passes the network in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from slowfast_patches.train.checkpoints import from_every_rank
from slowfast_patches.utils.distributed import World

__all__ = ["buffers_of_ranks", "in_parts", "keep_buffers", "set_buffers"]


def keep_buffers(model: nn.Module) -> Callable[[], None]:
    """Copy a model's buffers; calling the result puts the copies back."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]

    def put_back() -> None:
        for buffer, copy in kept:
            buffer.copy_(copy)

    return put_back


def buffers_of_ranks(model: nn.Module, world: World) -> Tensor | None:
    """Running means and variances of all processes, (processes, N); None with one process.

    They differ until they are averaged. An average that an undisturbed run does not take would show
    in the last bits of a continued one.
    """
    if world.size == 1:
        return None
    return from_every_rank(torch.cat([b.reshape(-1) for b in _floats(model)]), world)


def set_buffers(model: nn.Module, rows: Tensor | None, world: World) -> None:
    """Give this process the running statistics that it had, if there are as many processes now."""
    if rows is None or len(rows) != world.size:
        return
    buffers = _floats(model)
    parts = torch.split(rows[world.rank], [b.numel() for b in buffers])
    for buffer, part in zip(buffers, parts, strict=True):
        buffer.copy_(part.view(buffer.shape))


def in_parts(model: nn.Module, parts: int) -> Iterator[int]:
    """The numbers of a mini-batch's parts, each to pass the model while it is at hand.

    The running statistics move once: each part starts from what they were before the first, and
    after the last they are the mean of what the parts made of them. Counters count one forward.
    """
    if parts == 1:
        yield 0
        return
    buffers, floats = list(model.buffers()), _floats(model)
    before = [buffer.clone() for buffer in buffers]
    sums = [torch.zeros_like(buffer) for buffer in floats]
    for part in range(parts):
        if part:
            torch._foreach_copy_(buffers, before)
        yield part
        torch._foreach_add_(sums, floats, alpha=1 / parts)
    torch._foreach_copy_(floats, sums)


def _floats(model: nn.Module) -> list[Tensor]:
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]
