"""Gradient accumulation with the same BN statistics as without it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map


class MicroBatch(NamedTuple):
    """Part of a mini-batch, from `Training.micro_batches`.

    Attributes:
        batch: The mini-batch of some of the clips.
        weight: Fraction of the clips that are in this micro-batch. If the loss is a mean, multiply
            it by this weight. The losses then add up to the mean over the mini-batch.
        is_last: Whether this is the last micro-batch. Until then, `DistributedDataParallel.no_sync`
            saves time.
        clips: Indices of the clips in the mini-batch.
    """

    batch: dict[str, Any]
    weight: float
    is_last: bool
    clips: list[int]


def divide(
    batch: Mapping[str, Any],
    clips: int,
    group_size: int | None,
    accumulation_steps: int,
    modules: Iterable[nn.Module],
) -> Iterator[MicroBatch]:
    """Yield micro-batches of whole BN groups, and update the running statistics after the last one.

    BN group g of G has the clips g, g + G, g + 2G, ... (see `GroupedBatchNorm3d`). Micro-batch p
    has the groups p, p + n, p + 2 · n, ..., where n is `accumulation_steps`. `check_accumulation`
    checks that there are enough groups.

    Each micro-batch starts from the running statistics before the mini-batch. After the last one,
    set the running statistics to their mean over the micro-batches, weighted by the number of
    clips. Buffers that a forward does not change, such as constants of a layer, keep their exact
    values.

    Args:
        batch: The mini-batch. Tensors with one row per clip are divided.
        clips: Number of clips on this process.
        group_size: Clips per BN group, or None for a model without batch normalisation.
        accumulation_steps: Number of micro-batches.
        modules: All modules of the model to train, such as `model.modules()`.
    """
    if accumulation_steps == 1:
        yield MicroBatch(dict(batch), 1.0, True, list(range(clips)))
        return
    groups = max(1, clips // (group_size or 1))  # a group may extend over several processes
    modules = list(modules)
    # Leave out frozen modules, whose mean over micro-batches could differ by rounding errors.
    trained = [module for module in modules if module.training]
    norms = [module for module in trained if isinstance(module, _BatchNorm)]
    stats = [buffer for module in norms for buffer in float_buffers(module)]
    others = [b for m in trained if not isinstance(m, _BatchNorm) for b in float_buffers(m)]
    starts = _copies(stats)
    other_starts = _copies(others)
    changes = list[Tensor]()
    put_back = keep_buffers(modules) if stats or others else None
    for part in range(accumulation_steps):
        if put_back is not None:
            put_back()
        chosen = [i for i in range(clips) if i % groups % accumulation_steps == part]
        share = len(chosen) / clips
        micro = select_clips(batch, chosen, clips)
        yield MicroBatch(micro, share, part == accumulation_steps - 1, chosen)
        differences = list(torch._foreach_sub(stats, starts)) if stats else []
        for buffer, start in zip(others, other_starts, strict=True):
            # The difference is 0 for a constant, also an infinite one.
            differences.append((buffer - start).masked_fill_(buffer == start, 0))
        if changes:
            torch._foreach_add_(changes, differences, alpha=share)
        elif differences:
            changes = list(torch._foreach_mul(differences, share))
    if changes:
        torch._foreach_copy_(stats + others, starts + other_starts)
        torch._foreach_add_(stats + others, changes)


def select_clips(
    batch: Mapping[str, Any], clips: slice | Sequence[int], count: int
) -> dict[str, Any]:
    """Select clips from a mini-batch.

    Tensors with one row per clip are indexed, also inside lists, tuples and dictionaries. All other
    values are kept.

    Args:
        batch: The mini-batch.
        clips: Indices of the clips to select.
        count: Number of clips in the mini-batch.
    """
    if len(torch.arange(count)[clips]) == count:
        return dict(batch)

    def select(value: Any) -> Any:
        is_per_clip = isinstance(value, Tensor) and value.shape[:1] == (count,)
        return value[clips] if is_per_clip else value

    return {name: tree_map(select, value) for name, value in batch.items()}


def keep_buffers(modules: Iterable[nn.Module]) -> Callable[[], object]:
    """Copy the buffers of modules, and return a function that restores the buffers."""
    found = (buffer for module in modules for buffer in module.buffers(recurse=False))
    buffers = list(dict.fromkeys(found))
    copies = _copies(buffers)
    return lambda: torch._foreach_copy_(buffers, copies) if buffers else None


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    copies = [torch.empty_like(tensor) for tensor in tensors]
    if copies:
        torch._foreach_copy_(copies, list(tensors))
    return copies


def float_buffers(module: nn.Module) -> list[Tensor]:
    """Return the floating-point buffers of a module, without those of its children."""
    return [buffer for buffer in module.buffers(recurse=False) if buffer.is_floating_point()]
