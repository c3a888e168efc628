"""Batch normalisation over a fixed number of clips (paper, section 3).

Multigrid training changes the number of clips in a batch, and with it what batch normalisation
does: statistics over more clips are less noisy and regularise less. So the statistics are always
taken over groups of exactly k clips (8, or 16 and 32 where the short cycle enlarges the batch),
whatever the batch and however many processes share it.

`GroupedBatchNorm3d` is an `nn.BatchNorm3d` with one number more, `group_size`. `convert_batchnorm`
puts it in the place of every `nn.BatchNorm3d` of a model once, after building; `set_group_size`
then changes k from iteration to iteration.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = ["GroupedBatchNorm3d", "average_running_stats", "convert_batchnorm", "set_group_size"]

_batch_norm_out = torch.ops.aten.native_batch_norm.out
_batch_norm_stats = torch.ops.aten.batch_norm_update_stats
_batch_norm_backward = torch.ops.aten.native_batch_norm_backward


class GroupedBatchNorm3d(nn.BatchNorm3d):
    """`nn.BatchNorm3d` whose training statistics are taken over groups of `group_size` clips.

    Input and output are (N, C, T, H, W) with N the clips of this process. In training, with
    k = group_size,

    - None, or k = N: `nn.BatchNorm3d` itself;
    - k < N: clips [g·k, (g+1)·k) are group g, each normalised by its own mean and variance;
    - k > N: ranks [j·m, (j+1)·m) with m = k/N are group j and share their statistics.

    So if rank r holds the r-th run of N clips of the global batch, the groups do not depend on the
    number of processes. The running statistics move once per forward, towards the average over
    this process's groups of their means and unbiased variances. Evaluation, the constructor and
    the state dict are those of `nn.BatchNorm3d`. Gradients are of first order only.

    Raises ValueError, in training, if the clips cannot be arranged in groups of k.
    """

    group_size: int | None = None

    def forward(self, input: Tensor) -> Tensor:
        k = self.group_size
        if not self.training or k is None or k == len(input):
            return super().forward(input)
        self._check_input_dim(input)
        groups = _arrange(len(input), k, self.eps)
        if k * input.shape[2:].numel() < 2:
            raise ValueError(
                f"batch normalisation needs more than 1 value per channel and group, got input "
                f"{tuple(input.shape)} with group_size {k}: enlarge the group or the clips"
            )
        output, mean, var = self._normalize(input, groups)
        self._track(mean, var)
        return output

    def _normalize(self, x: Tensor, groups: _Groups) -> tuple[Tensor, Tensor, Tensor]:
        """The output, and the groups' means and unbiased variances, both (groups, C)."""
        # As in torch, statistics and parameters of a half-precision input are single.
        dtype = torch.promote_types(x.dtype, torch.float32)
        ones = torch.ones(self.num_features, dtype=dtype, device=x.device)
        weight = ones if self.weight is None else self.weight.to(dtype)
        bias = torch.zeros_like(ones) if self.bias is None else self.bias.to(dtype)
        x = x.contiguous(memory_format=_memory_format(x))
        result: tuple[Tensor, Tensor, Tensor]
        result = _GroupedBatchNorm.apply(x, weight, bias, groups)  # type: ignore[no-untyped-call]
        return result

    @torch.no_grad()
    def _track(self, mean: Tensor, var: Tensor) -> None:
        """Move the running statistics by one step towards the average over the groups."""
        if not self.track_running_stats:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        # momentum None: the cumulative average, as in nn.BatchNorm3d
        step = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        for running, new in ((self.running_mean, mean), (self.running_var, var)):
            assert running is not None
            running.mul_(1.0 - step).add_(new.mean(0).to(running.dtype), alpha=step)

    def extra_repr(self) -> str:
        inherited: str = super().extra_repr()  # type: ignore[no-untyped-call]
        return f"{inherited}, group_size={self.group_size}"


def convert_batchnorm(module: nn.Module) -> nn.Module:
    """Replace every `nn.BatchNorm3d` in `module` by a `GroupedBatchNorm3d`; return the result.

    The new modules hold the very parameters, buffers and other attributes of the old ones, so that
    optimizers and state dicts stay valid. Subclasses of `nn.BatchNorm3d` stay what they are.
    """
    return _convert(module, {})


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
    """Set the clips per group of every `GroupedBatchNorm3d` in `model` (None: the local batch)."""
    if group_size is not None and group_size < 1:
        raise ValueError(f"group_size must be at least 1 clip, or None, got {group_size}")
    for module in model.modules():
        if isinstance(module, GroupedBatchNorm3d):
            module.group_size = group_size


@torch.no_grad()
def average_running_stats(model: nn.Module) -> None:
    """Replace the running statistics of `model` by their mean over all processes.

    Every process must call this; a single process changes nothing.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm3d)]
    stats = [s for m in norms for s in (m.running_mean, m.running_var) if s is not None]
    if not stats or _world_size() == 1:
        return
    flat = torch.cat([s.double() for s in stats])
    dist.all_reduce(flat)
    flat /= _world_size()
    for stat, mean in zip(stats, torch.split(flat, [len(s) for s in stats]), strict=True):
        stat.copy_(mean)


class _Groups(NamedTuple):
    """How clips form groups: local clips per group, processes per group; and the norm's eps."""

    clips: int
    sharers: int
    eps: float

    def values(self, x: Tensor) -> int:
        """How many values of x, here and on the sharers, have one mean."""
        return self.clips * self.sharers * x.shape[2:].numel()


def _arrange(n: int, k: int, eps: float) -> _Groups:
    """The groups of k clips that n clips per process form.

    Raises ValueError, with the numbers of clips that would work, if there are none.
    """
    world = _world_size()
    if n >= k and n % k == 0:
        return _Groups(k, 1, eps)
    if 0 < n < k and k % n == 0 and world % (k // n) == 0:
        return _Groups(n, k // n, eps)
    shared = [str(d) for d in range(1, k) if k % d == 0 and world % (k // d) == 0]
    raise ValueError(
        f"cannot form groups of k = {k} clips for batch normalisation from {n} clips per process "
        f"on {world} process(es): use {', '.join([*shared, f'a multiple of {k}'])} clips per "
        f"process, or another group size"
    )


def _world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _memory_format(x: Tensor) -> torch.memory_format:
    # Where both fit (one channel, or one position), contiguous.
    last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last_3d)
    return torch.channels_last_3d if last else torch.contiguous_format


class _GroupedBatchNorm(torch.autograd.Function):
    """Batch normalisation of x (N, C, T, H, W) by groups, given weight and bias (C).

    Also returns the groups' means and unbiased variances, (groups, C), without gradient. Made of
    few kernels over much data: one `batch_norm` per group, concatenated, costs another pass over
    memory each way, and a synchronisation of all threads per kernel and group.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: _Groups
    ) -> tuple[Tensor, Tensor, Tensor]:
        mean, var = _statistics(x, weight.dtype, groups)
        invstd = (var + groups.eps).rsqrt()
        out = _scale_shift(x, mean, weight * invstd, bias.expand_as(mean), groups)
        ctx.save_for_backward(x, weight, mean, invstd)
        ctx.groups = groups
        unbiased = var * (1 + 1 / (groups.values(x) - 1))
        ctx.mark_non_differentiable(mean, unbiased)
        return out, mean, unbiased

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, invstd = ctx.saved_tensors
        groups: _Groups = ctx.groups
        grad = grad.contiguous(memory_format=_memory_format(x))
        sums = _gradient_sums(x, grad, mean, invstd, groups)
        grad_weight, grad_bias = sums.sum(1).unbind()
        if groups.sharers > 1:
            # The parameters' gradients stay local (as DDP expects); the input's sees all clips.
            dist.all_reduce(sums, group=_neighbours(groups.sharers))
        # dx = scale·(grad − mean of grad − x̂ · mean of grad·x̂) with x̂ = (x − mean)/std. The scale
        # is rounded as x is, in every term: dx stays orthogonal to 1 and x̂, and one kernel does.
        scale = (weight * invstd).to(x.dtype)
        slope, shift = -scale * sums / groups.values(x)
        grad_x = _scale_shift(x, mean, slope * invstd, shift, groups)
        by_group = (-1, groups.clips, *x.shape[1:])
        grad_x.view(by_group).addcmul_(grad.view(by_group), scale[:, None, :, None, None, None])
        return grad_x, grad_weight, grad_bias, None


# Statistics, scales and shifts are (groups, C). torch's kernels take one per channel, so they see
# a contiguous tensor as one clip of N·C channels, and a channels-last one group by group.


def _blocks(x: Tensor, groups: _Groups) -> tuple[Tensor, ...]:
    """Views of x, each with one value per channel of a statistic."""
    if x.is_contiguous():
        return (x.view(1, -1, *x.shape[2:]),)
    return torch.split(x, groups.clips)


def _per_block(stat: Tensor, x: Tensor, groups: _Groups) -> Tensor:
    """The rows (blocks, channels) for `_blocks(x)` of a statistic (groups, C)."""
    return stat.repeat_interleave(groups.clips, 0).view(1, -1) if x.is_contiguous() else stat


def _statistics(x: Tensor, dtype: torch.dtype, groups: _Groups) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each group, (groups, C), over all processes that share it."""
    blocks = _blocks(x, groups)
    # Running statistics, unused, make the kernel compute in their precision.
    unused = torch.zeros(2, blocks[0].shape[1], dtype=dtype, device=x.device)
    parts = [torch.stack(_batch_norm_stats(block, *unused, 0.0)) for block in blocks]
    table = torch.stack(parts, 1).view(2, len(x) // groups.clips, -1, x.shape[1])
    if groups.sharers == 1:
        return _merge(table)
    # Every rank fills its row, then all rows are summed: a gather that every backend has.
    rows = table.new_zeros(2, 1, groups.sharers, x.shape[1])
    rows[:, :, dist.get_rank() % groups.sharers] = torch.stack(_merge(table))
    dist.all_reduce(rows, group=_neighbours(groups.sharers))
    return _merge(rows)


def _merge(table: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each union of equal parts, from theirs: (2, groups, parts, C)."""
    means, variances = table
    return means.mean(1), variances.mean(1) + means.var(1, correction=0)


def _scale_shift(x: Tensor, mean: Tensor, scale: Tensor, shift: Tensor, groups: _Groups) -> Tensor:
    """(x − mean)·scale + shift, in one pass: the kernel of batch normalisation in evaluation."""
    out = torch.empty_like(x)
    stats = [_per_block(stat, x, groups) for stat in (scale, shift, mean)]
    unit = torch.ones_like(stats[0][0])
    unused = {"save_mean": unit.new_empty(0), "save_invstd": unit.new_empty(0)}
    blocks = _blocks(x, groups), _blocks(out, groups)
    for x_b, out_b, *stats_b in zip(*blocks, *stats, strict=True):
        _batch_norm_out(x_b, *stats_b, unit, False, 0.0, 0.0, out=out_b, **unused)
    return out


def _gradient_sums(x: Tensor, grad: Tensor, mean: Tensor, invstd: Tensor, by: _Groups) -> Tensor:
    """Σ grad·(x − mean)/std and Σ grad over the local clips of each group: (2, groups, C)."""
    mask = [False, True, True]  # the sums without the gradient of x, which belongs to the group
    stats = [_per_block(stat, x, by) for stat in (mean, invstd)]
    unit = torch.ones_like(stats[0][0])
    sums = []
    for x_b, grad_b, *saved in zip(_blocks(x, by), _blocks(grad, by), *stats, strict=True):
        result = _batch_norm_backward(grad_b, x_b, unit, None, None, *saved, True, 0.0, mask)
        sums.append(torch.stack(result[1:]))
    return torch.stack(sums, 1).view(2, len(mean), -1, x.shape[1]).sum(2)


_subgroups: WeakKeyDictionary[dist.ProcessGroup, dict[int, dist.ProcessGroup]] = WeakKeyDictionary()


def _neighbours(sharers: int) -> dist.ProcessGroup:
    """The process group of this rank and its neighbours, `sharers` ranks, created on first use.

    Creating groups is collective: ranks come here for the same sizes in the same order.
    """
    world = dist.group.WORLD
    assert world is not None
    if sharers == world.size():
        return world
    known = _subgroups.setdefault(world, {})
    if sharers not in known:
        known[sharers] = dist.new_subgroups(sharers)[0]  # type: ignore[no-untyped-call]
    return known[sharers]
