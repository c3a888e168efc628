"""BN running statistics over several processes, and precise BN."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from multigrid import GroupedBatchNorm3d, set_group_size
from multigrid.batchnorm import channel_moments, float_buffers
from slowfast_patches.models.layers.dropout import seed_dropout
from slowfast_patches.utils.distributed import World, gather_objects, sum_over_ranks


def buffers_of_ranks(model: nn.Module, world: World) -> Tensor | None:
    """Gather the running means and variances of all processes.

    The statistics of the processes differ between scheduled validations and checkpoints, which
    average them. A checkpoint at another iteration stores the statistics of each process.

    Returns:
        (world size, N) on the CPU, or None if there is a single process or no running statistics.
    """
    if world.size == 1 or not _floats(model):
        return None
    return torch.stack(gather_objects(parameters_to_vector(_floats(model)).cpu()))


def set_buffers(model: nn.Module, rows: Tensor | None, world: World) -> None:
    """Restore the running statistics of this rank from `buffers_of_ranks`.

    Do nothing if `rows` is None or was gathered from another number of processes.
    """
    if rows is not None and len(rows) == world.size:
        vector_to_parameters(rows[world.rank].to(world.device), _floats(model))


def _floats(model: nn.Module) -> list[Tensor]:
    return [buffer for module in model.modules() for buffer in float_buffers(module)]


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

    This is precise BN (Wu and Johnson, 2021) over all processes. fvcore's `update_bn_stats` does
    not support several processes. The forward passes normalise over BN groups of `global_batch`
    clips, which may extend over several processes. Frozen BN layers are unchanged. All BN layers
    must be `GroupedBatchNorm3d`, and every process must have called `form_bn_process_groups`.

    Args:
        model: The model. It is set to training mode.
        batches: Mini-batches of equal size. Every process must have the same number of them.
        arguments: Function that converts a mini-batch to the arguments of the model.
        world: Rank, world size and device of this process.
        autocast: Function that returns the autocast context of the forward passes.
        global_batch: Number of clips in a BN group.
    """
    model.train()
    norms = [
        m
        for m in model.modules()
        if isinstance(m, GroupedBatchNorm3d) and m.track_running_stats and m.training
    ]
    if not norms:
        return
    # For each layer, sum E[x] and E[x²] of the mini-batches in double precision.
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
