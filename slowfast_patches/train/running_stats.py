"""Running statistics of batch normalisation: of mini-batches in parts, of several processes, and
from many clips at once for evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from multigrid import GroupedBatchNorm3d, set_group_size
from multigrid.batchnorm import channel_moments
from slowfast_patches.models.inputs import InputTransform, head_inputs
from slowfast_patches.models.layers.dropout import set_clips
from slowfast_patches.utils.distributed import World, gathered, sum_over_ranks


def keep_buffers(model: nn.Module) -> Callable[[], object]:
    """Copy a model's buffers; calling the result puts the copies back."""
    buffers = list(model.buffers())
    copies = [buffer.clone() for buffer in buffers]
    return lambda: torch._foreach_copy_(buffers, copies) if buffers else None


def buffers_of_ranks(model: nn.Module, world: World) -> Tensor | None:
    """Running means and variances of all processes, (processes, N); None with one process, or where
    the model has none.

    They differ until they are averaged, which happens at evaluations and checkpoints that are due.
    """
    if world.size == 1 or not _floats(model):
        return None
    return torch.stack(gathered(parameters_to_vector(_floats(model)).cpu()))


def set_buffers(model: nn.Module, rows: Tensor | None, world: World) -> None:
    """Give this process the running statistics that it had, if there are as many processes now."""
    if rows is not None and len(rows) == world.size:
        vector_to_parameters(rows[world.rank].to(world.device), _floats(model))


def in_parts(model: nn.Module, parts: int) -> Iterator[int]:
    """Yield micro-batch indices; run each through the model before resuming. Running statistics
    are updated once: to the mean of what each micro-batch makes of those before the first."""
    # Frozen ones stay, exactly: a sum of thirds is not always the whole.
    floats = [buffer for module in model.modules() if module.training for buffer in _own(module)]
    if parts == 1 or not floats:
        yield from range(parts)
        return
    put_back = keep_buffers(model)
    sums = [torch.zeros_like(buffer) for buffer in floats]
    for part in range(parts):
        if part:
            put_back()
        yield part
        torch._foreach_add_(sums, floats, alpha=1 / parts)
    torch._foreach_copy_(floats, sums)


def _floats(model: nn.Module) -> list[Tensor]:
    return [buffer for module in model.modules() for buffer in _own(module)]


def _own(module: nn.Module) -> list[Tensor]:
    return [buffer for buffer in module.buffers(recurse=False) if buffer.is_floating_point()]


@torch.no_grad()
def update_precise_bn(
    model: nn.Module,
    batches: Iterable[Any],
    transform: InputTransform,
    world: World,
    autocast: Callable[[], Any],
    global_batch: int,
) -> None:
    """Replace the running statistics by the mean and variance of all the values that a channel has
    over the mini-batches of all processes (Wu and Johnson, 2021).

    Clips are normalised meanwhile over `global_batch` of them, on any number of processes; the host
    takes each GPU's own. All mini-batches are of one size, and each process has as many and has
    called `form_neighbours`. All BN is `GroupedBatchNorm3d`; frozen ones stay as they are. fvcore's
    `update_bn_stats` does not know of other processes.
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
    set_clips(model, None)
    hooks = [norm.register_forward_pre_hook(observe) for norm in norms]
    try:
        with autocast():
            for batch in batches:
                boxes = head_inputs(batch, world.device)
                model(transform(batch["clips"], batch["flips"]), *boxes)
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
