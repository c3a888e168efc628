"""Running statistics of BN: in micro-batches, on several processes, and precise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from multigrid import GroupedBatchNorm3d, set_group_size
from multigrid.batchnorm import channel_moments
from slowfast_patches.models.layers.dropout import seed_dropout
from slowfast_patches.utils.distributed import World, gather_objects, sum_over_ranks


def keep_buffers(model: nn.Module) -> Callable[[], object]:
    """Copy a model's buffers, and return a function that puts the copies back."""
    buffers = list(model.buffers())
    copies = [buffer.clone() for buffer in buffers]
    return lambda: torch._foreach_copy_(buffers, copies) if buffers else None


def buffers_of_ranks(model: nn.Module, world: World) -> Tensor | None:
    """Gather the running means and variances of all processes.

    They differ until they are averaged, which happens at each evaluation and each checkpoint that
    is due.

    Returns:
        (processes, N), or None if there is one process or the model has no such statistics.
    """
    if world.size == 1 or not _floats(model):
        return None
    return torch.stack(gather_objects(parameters_to_vector(_floats(model)).cpu()))


def set_buffers(model: nn.Module, rows: Tensor | None, world: World) -> None:
    """Restore this process's running statistics, if the number of processes is the same."""
    if rows is not None and len(rows) == world.size:
        vector_to_parameters(rows[world.rank].to(world.device), _floats(model))


class MicroBatchStats:
    """Running statistics of a mini-batch that passes the model in micro-batches.

    They are updated once, to the mean of the statistics after each micro-batch alone. Call
    `restart` before each micro-batch, `add` after it, and `update` after the last one.
    """

    def __init__(self, model: nn.Module, parts: int) -> None:
        # Frozen statistics stay exactly as they are: a sum of thirds is not always the whole.
        """Copy the buffers of a model for `parts` micro-batches."""
        modules = [module for module in model.modules() if module.training] if parts > 1 else []
        self._parts = parts
        self._current = [buffer for module in modules for buffer in _own(module)]
        self._sums = [torch.zeros_like(buffer) for buffer in self._current]
        self._put_back = keep_buffers(model) if self._current else None

    def restart(self) -> None:
        """Set the model's buffers to their values before the first micro-batch."""
        if self._put_back is not None:
            self._put_back()

    def add(self) -> None:
        """Add the model's statistics after a micro-batch to the mean."""
        if self._current:
            torch._foreach_add_(self._sums, self._current, alpha=1 / self._parts)

    def update(self) -> None:
        """Set the model's statistics to the mean over the micro-batches."""
        if self._current:
            torch._foreach_copy_(self._current, self._sums)


def _floats(model: nn.Module) -> list[Tensor]:
    return [buffer for module in model.modules() for buffer in _own(module)]


def _own(module: nn.Module) -> list[Tensor]:
    return [buffer for buffer in module.buffers(recurse=False) if buffer.is_floating_point()]


@torch.no_grad()
def update_precise_bn(
    model: nn.Module,
    batches: Iterable[Any],
    arguments: Callable[[Any], Sequence[Any]],
    world: World,
    autocast: Callable[[], Any],
    global_batch: int,
) -> None:
    """Replace the running statistics by the mean and variance over many mini-batches.

    This is precise BN (Wu and Johnson, 2021) over all processes, which `update_bn_stats` of fvcore
    does not support. Clips are normalised over `global_batch` of them, on any number of processes.
    Frozen layers stay as they are. All BN must be `GroupedBatchNorm3d`, and each process must have
    called `form_neighbours`.

    Args:
        model: the model, which is set to training mode.
        batches: mini-batches of equal size, the same number in each process.
        arguments: returns the model's arguments for a mini-batch.
        world: this process among all.
        autocast: context of the forward passes.
        global_batch: number of clips over which clips are normalised.
    """
    model.train()
    norms = [
        m
        for m in model.modules()
        if isinstance(m, GroupedBatchNorm3d) and m.track_running_stats and m.training
    ]
    if not norms:
        return
    # Means of values and of their squares, summed over the mini-batches in double precision.
    sums: dict[nn.Module, Tensor] = {
        norm: torch.zeros(2, norm.num_features, dtype=torch.float64, device=world.device)
        for norm in norms
    }
    count = torch.zeros((), device=world.device)

    def observe(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        sums[norm] += channel_moments(inputs[0])

    set_group_size(model, global_batch)
    seed_dropout(model, None)
    hooks = [norm.register_forward_pre_hook(observe) for norm in norms]
    try:
        with autocast():
            for batch in batches:
                model(*arguments(batch))
                count += 1
    finally:
        for hook in hooks:
            hook.remove()
    sum_over_ranks(count)
    for norm in norms:
        mean, square = sum_over_ranks(sums[norm]) / count
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.copy_(mean)
        norm.running_var.copy_((square - mean.square()).clamp_(min=0))
