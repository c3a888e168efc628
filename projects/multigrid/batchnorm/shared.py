"""Batch statistics that processes share: where a group has more clips than one of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = [
    "SharedBatchNorm",
    "arrange",
    "arrangement",
    "average_running_stats",
    "channel_moments",
    "form_neighbours",
]


def arrangement(n: int, k: int | None, world: int) -> tuple[int, int] | None:
    """(local clips per group, processes per group) for n clips on each of `world` processes.

    Groups are of k clips, or for k None of a process's own. None if there is no such arrangement.
    """
    if k is None:
        return n, 1
    if n >= k and n % k == 0:
        return k, 1
    if 0 < n < k and k % n == 0 and world % (k // n) == 0:
        return n, k // n
    return None


def channel_moments(x: Tensor) -> Tensor:
    """The means of each channel's values and of their squares, (2, C) float64, of (N, C, ...).

    Such moments can be averaged over processes in messages of one length. A variance, their
    difference, cancels where the mean is large beside it: in double, beyond what the input tells.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    # The running statistics only say in which precision the batch's come.
    running = torch.zeros(2, x.shape[1], dtype=dtype, device=x.device)
    mean, var = torch.batch_norm_update_stats(x, running[0], running[1], 0.0)
    mean = mean.double()
    return torch.stack((mean, var.double() + mean.square()))


def arrange(n: int, k: int) -> tuple[int, int]:
    """(local clips per group, processes per group) for n local clips in groups of k.

    Raises ValueError if there is no such arrangement.
    """
    world = dist.get_world_size() if _is_distributed() else 1
    arranged = arrangement(n, k, world)
    if arranged is not None:
        return arranged
    raise ValueError(
        f"cannot form groups of k = {k} clips for batch normalisation from {n} clips per process "
        f"on {world} process(es): use a multiple of {k} clips per process, or a divisor that whole "
        "groups of processes share, or another group size"
    )


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


class SharedBatchNorm(torch.autograd.Function):
    """Normalise all local clips together with those of `sharers` - 1 neighbouring ranks."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, sharers: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        mean, var = _shared_stats(x, sharers)
        out = F.batch_norm(x, mean, var, weight, bias, training=False, eps=eps)
        count = sharers * x.numel() // x.shape[1]
        ctx.save_for_backward(x, weight, mean, (var + eps).rsqrt())
        ctx.sharers = sharers
        ctx.count = count
        mean = mean[None]
        unbiased = (var * (count / (count - 1)))[None]
        ctx.mark_non_differentiable(mean, unbiased)
        return out, mean, unbiased

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, invstd = ctx.saved_tensors
        # The parameters' gradients stay local (as DDP expects); the input's sees all clips.
        _, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(
            grad, x, weight, None, None, mean, invstd, True, 0.0, [False, True, True]
        )
        sums = torch.stack((grad_weight, grad_bias))
        reducing = dist.all_reduce(sums, group=_neighbours(ctx.sharers), async_op=True)
        scale = weight * invstd
        grad_x = grad * _per_channel(scale)  # while the sums are under way
        reducing.wait()
        along, level = sums / ctx.count
        # scale · (grad - level - normalised x · along), with the rest linear in x
        slope = -scale * invstd * along
        grad_x.addcmul_(x, _per_channel(slope)).sub_(_per_channel(scale * level + slope * mean))
        return grad_x.to(x.dtype), grad_weight, grad_bias, None, None


def _per_channel(values: Tensor) -> Tensor:
    return values.view(1, -1, 1, 1, 1)


def _shared_stats(x: Tensor, sharers: int) -> tuple[Tensor, Tensor]:
    """Mean and biased variance, (C,), over the clips of `sharers` neighbouring ranks."""
    moments = channel_moments(x) / sharers
    dist.all_reduce(moments, group=_neighbours(sharers))
    mean, square = moments
    dtype = torch.promote_types(x.dtype, torch.float32)
    return mean.to(dtype), (square - mean.square()).clamp_(min=0).to(dtype)


_formed: WeakKeyDictionary[dist.ProcessGroup, dict[int, dist.ProcessGroup]] = WeakKeyDictionary()


def form_neighbours(sharers: int, timeout: timedelta | None = None) -> None:
    """Form the groups of `sharers` neighbouring processes that share statistics, if not yet there.

    Every process must call this, for the same sizes in the same order, before a forward needs them.
    They are groups of their own even where all processes share: in the default group, messages
    would wait behind the gradients of the layers above. `timeout` is how long a process waits for
    its neighbours; None is torch's own, whatever the default group's is.
    """
    if sharers == 1:
        return
    world = dist.group.WORLD
    assert world is not None
    known = _formed.setdefault(world, {})
    if sharers not in known:
        groups = dist.new_subgroups(sharers, timeout=timeout)  # type: ignore[no-untyped-call]
        known[sharers] = groups[0]


def _neighbours(sharers: int) -> dist.ProcessGroup:
    """The process group of this rank and the neighbours that it shares statistics with.

    Raises:
        ValueError: it was not formed.
    """
    world = dist.group.WORLD
    assert world is not None
    if sharers not in (known := _formed.get(world, {})):
        raise ValueError(
            f"groups of {sharers} processes that share statistics of batch normalisation have not "
            f"been formed: call form_groups(schedule), or form_neighbours({sharers}), on every "
            "process before training"
        )
    return known[sharers]


@torch.no_grad()
def average_running_stats(model: nn.Module) -> None:
    """Replace the running statistics of `model` by their mean over all processes.

    Every process must call this. With a single process nothing changes.
    """
    if not _is_distributed():
        return
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm3d)]
    stats = [s for m in norms for s in (m.running_mean, m.running_var) if s is not None]
    if not stats:
        return
    flat = torch.cat([s.double() for s in stats])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for stat, mean in zip(stats, torch.split(flat, [s.numel() for s in stats]), strict=True):
        stat.copy_(mean)
