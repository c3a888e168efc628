"""Batch statistics over several processes, for groups with more clips than one process has."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from multigrid.errors import MultigridError


def arrangement(n: int, k: int | None, world: int) -> tuple[int, int] | None:
    """Arrange n clips on each of `world` processes in groups of k.

    Returns:
        (local clips per group, processes per group), or None if there is no such arrangement. If k
        is None, the clips of each process are one group.
    """
    if k is None:
        return n, 1
    if n >= k and n % k == 0:
        return k, 1
    if 0 < n < k and k % n == 0 and world % (k // n) == 0:
        return n, k // n
    return None


def channel_moments(x: Tensor) -> Tensor:
    """Return the mean and the mean square of each channel of (N, C, ...).

    Averaging these moments over processes gives the moments of all their clips. They are float64
    because the variance, mean square minus squared mean, suffers from cancellation if the mean is
    large.

    Returns:
        The moments, (2, C) float64.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    _, channels = x.shape[:2]
    # The zeros are placeholders for running statistics. Their dtype is that of the result.
    zeros = torch.zeros(channels, dtype=dtype, device=x.device)
    mean, var = torch.batch_norm_update_stats(x, zeros, zeros, 0.0)
    mean = mean.double()
    return torch.stack((mean, var.double() + mean.square()))


def arrange(n: int, k: int) -> tuple[int, int]:
    """Return the arrangement of n local clips in groups of k.

    Raises:
        ValueError: Groups of k cannot be formed.
    """
    world = dist.get_world_size() if is_distributed() else 1
    if (arranged := arrangement(n, k, world)) is None:
        raise MultigridError(
            f"cannot form BN groups of k = {k} clips from {n} clips per process on {world} "
            f"process(es). The number of clips per process must be a multiple of {k}. Or it must "
            f"divide {k}, and {k} divided by it must divide the number of processes"
        )
    return arranged


def is_distributed() -> bool:
    """Return whether torch.distributed has started."""
    return dist.is_available() and dist.is_initialized()


class SharedBatchNorm(torch.autograd.Function):
    """Autograd function of batch normalisation over the clips of `ranks_per_group` ranks."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, ranks_per_group: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        mean, var = _shared_stats(x, ranks_per_group)
        out = F.batch_norm(x, mean, var, weight, bias, training=False, eps=eps)
        count = ranks_per_group * x.numel() // x.shape[1]
        ctx.save_for_backward(x, weight, mean, (var + eps).rsqrt())
        ctx.ranks_per_group = ranks_per_group
        ctx.count = count
        unbiased = var * (count / (count - 1))
        ctx.mark_non_differentiable(mean, unbiased)
        return out, mean, unbiased

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, invstd = ctx.saved_tensors
        # Parameter gradients stay local, because DDP averages them.
        # The gradient of the input needs the sums over all clips of the group.
        _, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(
            grad, x, weight, None, None, mean, invstd, True, 0.0, [False, True, True]
        )
        sums = torch.stack((grad_weight, grad_bias))
        reducing = dist.all_reduce(sums, group=_process_group(ctx.ranks_per_group), async_op=True)
        scale = weight * invstd
        grad_x = grad * _per_channel(scale)  # overlaps with the all-reduce
        reducing.wait()
        along, level = sums / ctx.count
        # grad_x = scale · (grad - level - normalised x · along); the last two terms are linear in x
        slope = -scale * invstd * along
        grad_x.addcmul_(x, _per_channel(slope)).sub_(_per_channel(scale * level + slope * mean))
        return grad_x.to(x.dtype), grad_weight, grad_bias, None, None


def _per_channel(values: Tensor) -> Tensor:
    return values.view(1, -1, 1, 1, 1)


def _shared_stats(x: Tensor, ranks_per_group: int) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance, (C,), over the clips of `ranks_per_group` ranks."""
    moments = channel_moments(x) / ranks_per_group
    dist.all_reduce(moments, group=_process_group(ranks_per_group))
    mean, square = moments
    dtype = torch.promote_types(x.dtype, torch.float32)
    return mean.to(dtype), (square - mean.square()).clamp_(min=0).to(dtype)


_formed: WeakKeyDictionary[dist.ProcessGroup, dict[int, dist.ProcessGroup]] = WeakKeyDictionary()


def form_bn_process_groups(ranks_per_group: int, timeout: timedelta | None = None) -> None:
    """Form the process groups of neighbouring ranks that share BN statistics.

    Every process must call this before the first forward, with the same sizes in the same order.
    Existing groups are kept. A new group is formed even if all ranks share statistics, because in
    the default group, the exchange of statistics would wait for the gradients of later layers.

    Args:
        ranks_per_group: The number of neighbouring ranks in a group.
        timeout: Maximum time that a process waits for its neighbours. None means the default of
            torch, even if the default group has a different timeout.
    """
    if ranks_per_group == 1:
        return
    world = dist.group.WORLD
    assert world is not None
    known = _formed.setdefault(world, {})
    if ranks_per_group not in known:
        groups = dist.new_subgroups(ranks_per_group, timeout=timeout)  # type: ignore[no-untyped-call]
        known[ranks_per_group] = groups[0]


def _process_group(ranks_per_group: int) -> dist.ProcessGroup:
    """Return the process group of this rank and the neighbours that it shares statistics with."""
    assert dist.group.WORLD is not None
    group = _formed.get(dist.group.WORLD, {}).get(ranks_per_group)
    if group is None:
        raise MultigridError(
            f"the groups of {ranks_per_group} processes that share BN statistics have not been "
            f"formed. Call form_groups(schedule), or form_bn_process_groups({ranks_per_group}), on "
            "every process before training"
        )
    return group


@torch.no_grad()
def average_running_stats(model: nn.Module) -> None:
    """Replace the BN running statistics of `model` by their mean over all processes.

    Every process must call this. On a single process nothing changes.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm3d)]
    stats = [s for m in norms for s in (m.running_mean, m.running_var) if s is not None]
    if not stats or not is_distributed():
        return
    flat = torch.cat(stats).double()
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    torch._foreach_copy_(stats, torch.split(flat, [s.numel() for s in stats]))
