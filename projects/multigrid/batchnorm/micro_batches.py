"""Gradient accumulation with the same BN statistics as without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class MicroBatch(NamedTuple):
    """Part of a mini-batch, from `Training.micro_batches`.

    Attributes:
        batch: The mini-batch of some of the clips.
        weight: Share of the clips that are in this part. Multiply the loss by it if the loss is a
            mean. The losses then add up to the mean over the mini-batch.
        is_last: Whether this is the last part. Until then, `DistributedDataParallel.no_sync` saves
            time.
    """

    batch: dict[str, Any]
    weight: float
    is_last: bool


def split_clips(clips: int, group_size: int | None, parts: int) -> list[list[int]]:
    """Split the clips of this process into micro-batches of whole BN groups.

    BN group g of G has the clips g, g + G, g + 2G, ... (see `GroupedBatchNorm3d`). Micro-batch p
    has the groups p, p + `parts`, p + 2 · `parts`, ... `check_accumulation` checks that there are
    enough groups.

    Args:
        clips: Number of clips on this process.
        group_size: Clips per BN group, or None for a model without batch normalisation.
        parts: Number of micro-batches.

    Returns:
        The indices of the clips of each micro-batch.
    """
    groups = max(1, clips // (group_size or 1))  # a group may extend over several processes
    return [[i for i in range(clips) if i % groups % parts == part] for part in range(parts)]


class MicroBatchStats:
    """Update running statistics once for a mini-batch that is divided into micro-batches.

    Each micro-batch starts from the statistics before the mini-batch. The new statistics are the
    weighted mean of the results. Call `restart` before each micro-batch, `add` after each
    micro-batch, and `update` after the last one.
    """

    def __init__(self, model: nn.Module, parts: int) -> None:
        """Copy the buffers of a model.

        Args:
            model: The model.
            parts: Number of micro-batches. With 1, the methods do nothing.
        """
        # Leave out frozen modules, whose mean over micro-batches could differ by rounding errors.
        modules = [module for module in model.modules() if module.training] if parts > 1 else []
        self._current = [buffer for module in modules for buffer in float_buffers(module)]
        self._sums = [torch.zeros_like(buffer) for buffer in self._current]
        self._put_back = keep_buffers(model) if self._current else None

    def restart(self) -> None:
        """Restore the values that the buffers had before the first micro-batch."""
        if self._put_back is not None:
            self._put_back()

    def add(self, weight: float) -> None:
        """Add the current running statistics to the mean.

        Args:
            weight: Share of the clips of the mini-batch that are in the micro-batch.
        """
        if self._current:
            torch._foreach_add_(self._sums, self._current, alpha=weight)

    def update(self) -> None:
        """Set the running statistics to the mean over the micro-batches."""
        if self._current:
            torch._foreach_copy_(self._current, self._sums)


def keep_buffers(model: nn.Module) -> Callable[[], object]:
    """Copy the buffers of a model, and return a function that restores the buffers."""
    buffers = list(model.buffers())
    copies = [buffer.clone() for buffer in buffers]
    return lambda: torch._foreach_copy_(buffers, copies) if buffers else None


def float_buffers(module: nn.Module) -> list[Tensor]:
    """Return the floating-point buffers of a module, without those of its children."""
    return [buffer for buffer in module.buffers(recurse=False) if buffer.is_floating_point()]
