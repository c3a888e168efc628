"""Running statistics of batch normalisation: of mini-batches in parts, of several processes, and
from many clips at once for evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from multigrid import GroupedBatchNorm3d, set_group_size
from multigrid.batchnorm import channel_moments
from slowfast_patches.models.inputs import InputTransform
from slowfast_patches.models.layers.dropout import set_clips
from slowfast_patches.utils.distributed import World, sum_over_ranks

__all__ = ["buffers_of_ranks", "in_parts", "keep_buffers", "set_buffers", "update_precise_bn"]


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
    own = torch.cat([b.reshape(-1) for b in _floats(model)])
    table = own.new_zeros(world.size, len(own), device=world.device)
    table[world.rank] = own
    return sum_over_ranks(table).cpu()


def set_buffers(model: nn.Module, rows: Tensor | None, world: World) -> None:
    """Give this process the running statistics that it had, if there are as many processes now."""
    if rows is None or len(rows) != world.size:
        return
    buffers = _floats(model)
    parts = torch.split(rows[world.rank], [b.numel() for b in buffers])
    for buffer, part in zip(buffers, parts, strict=True):
        buffer.copy_(part.view(buffer.shape))


def in_parts(model: nn.Module, parts: int) -> Iterator[int]:
    """Yield micro-batch indices; run each through the model before resuming. Running statistics
    are updated once: to the mean of what each micro-batch makes of those before the first."""
    buffers = list(model.buffers())
    floats = _floats(model)
    if parts == 1 or not floats:
        yield from range(parts)
        return
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
    called `form_neighbours`. All BN is `GroupedBatchNorm3d`.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm3d) and m.track_running_stats]
    if not norms:
        return
    model.train()
    set_group_size(model, global_batch)
    set_clips(model, None)
    assert all(isinstance(norm, GroupedBatchNorm3d) for norm in norms)
    moments = {norm: _Moments(norm.num_features, world.device) for norm in norms}
    hooks = [norm.register_forward_pre_hook(moment.see) for norm, moment in moments.items()]
    try:
        with autocast():
            for batch in batches:
                model(transform(batch["clips"], batch["flips"]))
    finally:
        for hook in hooks:
            hook.remove()
    for norm, moment in moments.items():
        mean, var = moment.result()
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(var)


class _Moments:
    """Mean and variance of each channel over the inputs of a module, all of as many values, on all
    processes, which fvcore's `update_bn_stats` does not know; in double precision."""

    def __init__(self, channels: int, device: torch.device) -> None:
        self._sums = torch.zeros(2, channels, dtype=torch.float64, device=device)
        self._inputs = torch.zeros(1, dtype=torch.float64, device=device)

    def see(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """A forward pre-hook."""
        self._sums += channel_moments(inputs[0])
        self._inputs += 1

    def result(self) -> tuple[Tensor, Tensor]:
        """Over all processes; every one of them must ask."""
        mean, square = sum_over_ranks(self._sums) / sum_over_ranks(self._inputs)
        return mean, (square - mean.square()).clamp_(min=0)
