"""Batch normalisation over a fixed number of clips (paper §3.2).

Multigrid training changes the number of clips in a batch, and with it what batch normalisation
does: statistics over more clips are less noisy and regularise less. So the statistics are always
taken over groups of exactly k clips (8, or 16 and 32 where the short cycle enlarges the batch),
whatever the batch and however many processes share it.

`GroupedBatchNorm3d` is an `nn.BatchNorm3d` with one number more, `group_size`. `convert_batchnorm`
puts it in the place of every `nn.BatchNorm3d` of a model once, after building; `set_group_size`
then changes k from iteration to iteration.
"""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from multigrid.batchnorm_split import split_batch_norm

__all__ = [
    "GroupedBatchNorm3d",
    "arrangement",
    "average_running_stats",
    "channel_moments",
    "convert_batchnorm",
    "form_neighbours",
    "group_order",
    "set_group_size",
    "wait_for_neighbours",
]


class GroupedBatchNorm3d(nn.BatchNorm3d):
    """`nn.BatchNorm3d` whose training statistics are taken over groups of `group_size` clips.

    Input and output are (N, C, T, H, W) with N the clips of this process. In training, with
    k = group_size,

    - None, or k = N: `nn.BatchNorm3d` itself;
    - k < N: of the G = N/k groups, group g has the clips g, g + G, g + 2G, ..., each group being
      normalised by its own mean and variance;
    - k > N: ranks [j·m, (j+1)·m) with m = k/N are group j and share their statistics, in process
      groups that `form_groups` or `form_neighbours` has formed.

    With None, statistics are over each process's own clips: what is trained then depends on the
    number of processes. With a group size it does not.

    With every G-th clip in a group, (N, C, T, H, W) read as (k, G·C, T, H, W) has one group's
    channel in each channel: one call of torch's own kernel, without a copy of a contiguous input.
    In channels_last_3d no view is of that kind, and kernels of our own (`batchnorm_split`) take
    the input as it lies. Input and output are in the same memory format, their gradients too.
    `group_order` says how to arrange clips so that the groups are runs of a stream, whatever the
    number of processes.

    The running statistics move once per forward, towards the average over this process's groups of
    their means and unbiased variances. Evaluation, the constructor and the state dict are those of
    `nn.BatchNorm3d`.

    Raises ValueError, in training, if the clips cannot be arranged in groups of k.
    """

    group_size: int | None = None

    def forward(self, input: Tensor) -> Tensor:
        k = self.group_size
        if not self.training or k is None or k == len(input):
            return super().forward(input)
        self._check_input_dim(input)
        clips, sharers = _arrange(len(input), k)
        if clips * sharers * input.shape[2:].numel() < 2:
            raise ValueError(
                f"batch normalisation needs more than 1 value per channel and group, got input "
                f"{tuple(input.shape)} with group_size {k}: enlarge the group or the clips"
            )
        if sharers > 1:
            output, mean, var = _SharedBatchNorm.apply(  # type: ignore[no-untyped-call]
                input, *self._affine(input), sharers, self.eps
            )
        else:
            output, mean, var = self._split(input, len(input) // clips)
        self._track(mean, var)
        assert isinstance(output, Tensor)
        return output

    def _split(self, x: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor]:
        """The output, and the groups' means and unbiased variances, both (G, C)."""
        n, channels = x.shape[:2]
        weight, bias = self._affine(x)
        channels_last = x.is_contiguous(memory_format=torch.channels_last_3d)
        if channels_last and not x.is_contiguous():
            return split_batch_norm(x, weight, bias, groups, self.eps)
        # With momentum 1 the "running" statistics are the batch's own, the variance unbiased.
        mean = weight.new_zeros(groups * channels)
        var = torch.ones_like(mean)
        folded = x.reshape(n // groups, groups * channels, *x.shape[2:])
        output = F.batch_norm(
            folded, mean, var, weight.repeat(groups), bias.repeat(groups), True, 1.0, self.eps
        )
        return output.reshape(x.shape), mean.view(groups, -1), var.view(groups, -1)

    def _affine(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scale and shift; statistics and parameters of a half-precision input are single."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        if self.weight is None:
            weight = torch.ones(self.num_features, dtype=dtype, device=x.device)
        else:
            weight = self.weight.to(dtype)
        return weight, torch.zeros_like(weight) if self.bias is None else self.bias.to(dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, var: Tensor) -> None:
        """Move the running statistics by one step towards the average over the groups."""
        if not self.track_running_stats:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        # momentum None: the cumulative average, as in nn.BatchNorm3d
        cumulative = self.momentum is None
        step = 1.0 / float(self.num_batches_tracked) if cumulative else self.momentum
        for running, new in ((self.running_mean, mean), (self.running_var, var)):
            assert running is not None
            assert step is not None
            running.lerp_(new.mean(0).to(running.dtype), step)

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, k={self.group_size}"


def group_order(clips: int, group_size: int | None) -> list[int]:
    """How to arrange `clips` clips of a stream so that its runs of `group_size` are the groups.

    Clip `group_order(n, k)[j]` of the run goes to place j of the batch. If rank r holds the r-th
    run of the global batch, arranged so, the groups do not depend on the number of processes.
    """
    if group_size is None or group_size >= clips or clips % group_size:
        return list(range(clips))
    groups = clips // group_size
    return [(j % groups) * group_size + j // groups for j in range(clips)]


def convert_batchnorm(module: nn.Module) -> nn.Module:
    """Replace every `nn.BatchNorm3d` in `module` by a `GroupedBatchNorm3d`; return the result.

    The new modules hold the very parameters, buffers, hooks and extra attributes of the old ones
    under the same names, so optimizers and state dicts stay valid. A module that appears twice
    stays one module.

    Raises:
        ValueError: `module` has batch normalisation of another class; nothing is converted.
    """
    _refuse_others(module)
    return _convert(module, {})


def _refuse_others(module: nn.Module) -> None:
    """Other batch normalisation is not converted: its input does not tell what it has of clips."""
    others = {
        name: type(norm)
        for name, norm in module.named_modules()
        if isinstance(norm, _BatchNorm) and not isinstance(norm, GroupedBatchNorm3d)
        if type(norm) is not nn.BatchNorm3d
    }
    if not others:
        return
    named = [f"{name or 'the module'} ({kind.__name__})" for name, kind in others.items()]
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    advice = (
        "leave out convert_sync_batchnorm: groups of clips are shared between processes anyway"
        if nn.SyncBatchNorm in others.values()
        else "put nn.BatchNorm3d in its place (frames as the T of (N, C, T, H, W)), or convert the "
        "parts of the model without it, as in model.trunk = convert_batchnorm(model.trunk): the "
        "others keep the statistics of each process's batch"
    )
    raise ValueError(
        f"only nn.BatchNorm3d can take its statistics over groups of clips, not "
        f"{', '.join(named[:3])}{more}: {advice}"
    )


def _convert(module: nn.Module, done: dict[nn.Module, nn.Module]) -> nn.Module:
    if module in done:
        return done[module]
    done[module] = module
    if type(module) is nn.BatchNorm3d:
        grouped = GroupedBatchNorm3d.__new__(GroupedBatchNorm3d)
        grouped.__dict__.update(module.__dict__)
        done[module] = grouped
    for name, child in module._modules.items():
        if child is not None:
            module._modules[name] = _convert(child, done)
    return done[module]


def set_group_size(model: nn.Module, group_size: int | None) -> None:
    """Set the clips per group of every `GroupedBatchNorm3d` in `model` (None: the local batch).

    Warns where there is none.
    """
    if group_size is not None and group_size < 1:
        raise ValueError(f"group_size must be at least 1 clip, or None, got {group_size}")
    norms = [m for m in model.modules() if isinstance(m, GroupedBatchNorm3d)]
    for norm in norms:
        norm.group_size = group_size
    if group_size is not None and not norms:
        warnings.warn(
            f"group_size {group_size} has no effect: the model has no GroupedBatchNorm3d; call "
            "convert_batchnorm(model) once after building it, or make_schedule(bn_size=None) if "
            "it has no batch normalisation",
            stacklevel=2,
        )


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


def _arrange(n: int, k: int) -> tuple[int, int]:
    """(local clips per group, processes per group) for n local clips in groups of k.

    Raises ValueError, with the sizes that would work, if there is no such arrangement.
    """
    world = dist.get_world_size() if _is_distributed() else 1
    found = arrangement(n, k, world)
    if found is not None:
        return found
    shared = [str(d) for d in range(1, k) if k % d == 0 and world % (k // d) == 0]
    raise ValueError(
        f"cannot form groups of k = {k} clips for batch normalisation from {n} clips per process "
        f"on {world} process(es): use {', '.join([*shared, f'a multiple of {k}'])} clips per "
        f"process, or another group size"
    )


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


class _SharedBatchNorm(torch.autograd.Function):
    """Normalise all local clips together with those of `sharers` - 1 neighbouring ranks."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, sharers: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        mean, var = _shared_stats(x, sharers)
        out = F.batch_norm(x, mean, var, weight, bias, training=False, eps=eps)
        count = sharers * x.numel() // x.shape[1]
        ctx.save_for_backward(x, weight, mean, (var + eps).rsqrt())
        ctx.sharers, ctx.count = sharers, count
        mean, unbiased = mean[None], (var * (count / (count - 1)))[None]
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
        wait_for_neighbours(reducing)
        along, level = sums / ctx.count
        # scale · (grad - level - normalised x · along), with the rest linear in x
        slope = -scale * invstd * along
        grad_x.addcmul_(x, _per_channel(slope)).sub_(_per_channel(scale * level + slope * mean))
        return grad_x.to(x.dtype), grad_weight, grad_bias, None, None


def wait_for_neighbours(work: dist.Work) -> None:
    """Wait for a collective, in a function by which a watchdog can tell."""
    work.wait()


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
