"""Batch normalisation over a fixed number of clips (paper, section 3).

Multigrid training changes the number of clips in a batch, and with it what batch normalisation
does: statistics over more clips are less noisy and regularise less. So the statistics are always
taken over groups of exactly k clips (8, or 16 and 32 where the short cycle enlarges the batch),
whatever the batch and however many processes share it.

`GroupedBatchNorm3d` is an `nn.BatchNorm3d` with one number more, `group_size`. `convert_batchnorm`
puts it in the place of every `nn.BatchNorm3d` of a model once, after building; `set_group_size`
then changes k from iteration to iteration.
"""

from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = ["GroupedBatchNorm3d", "average_running_stats", "convert_batchnorm", "set_group_size"]

_batch_norm_out = torch.ops.aten.native_batch_norm.out
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

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name that torch gives it
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
        output, mean, var = self._normalize(input, clips, sharers)
        self._track(mean, var)
        return output

    def _normalize(self, x: Tensor, clips: int, sharers: int) -> tuple[Tensor, Tensor, Tensor]:
        """The output, and the groups' means and unbiased variances, both (groups, C)."""
        # Statistics and parameters of a reduced-precision input are single, as in torch.
        dtype = torch.promote_types(x.dtype, torch.float32)
        ones = torch.ones(self.num_features, dtype=dtype, device=x.device)
        weight = ones if self.weight is None else self.weight.to(dtype)
        bias = torch.zeros_like(ones) if self.bias is None else self.bias.to(dtype)
        x = x.contiguous(memory_format=_memory_format(x))
        return _GroupedBatchNorm.apply(x, weight, bias, clips, sharers, self.eps)

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
            assert running is not None and step is not None
            running.mul_(1.0 - step).add_(new.mean(0).to(running.dtype), alpha=step)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, group_size={self.group_size}"


def convert_batchnorm(module: nn.Module) -> nn.Module:
    """Replace every `nn.BatchNorm3d` in `module` by a `GroupedBatchNorm3d`; return the result.

    The new modules hold the very parameters, buffers, hooks and extra attributes of the old ones
    under the same names, so optimizers and state dicts stay valid. A module that appears twice
    stays one module; subclasses of `nn.BatchNorm3d` stay what they are.
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

    Every process must call this. With a single process nothing changes.
    """
    if not _is_distributed():
        return
    norms = [m for m in model.modules() if isinstance(m, GroupedBatchNorm3d)]
    stats = [s for m in norms for s in (m.running_mean, m.running_var) if s is not None]
    if not stats:
        return
    flat = torch.cat([s.double() for s in stats])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for stat, mean in zip(stats, flat.split([s.numel() for s in stats]), strict=True):
        stat.copy_(mean)


def _arrange(n: int, k: int) -> tuple[int, int]:
    """(local clips per group, processes per group) for n local clips in groups of k.

    Raises ValueError, with the sizes that would work, if there is no such arrangement.
    """
    world = dist.get_world_size() if _is_distributed() else 1
    if n >= k and n % k == 0:
        return k, 1
    if 0 < n < k and k % n == 0 and world % (k // n) == 0:
        return n, k // n
    shared = [str(d) for d in range(1, k) if k % d == 0 and world % (k // d) == 0]
    raise ValueError(
        f"cannot form groups of k = {k} clips for batch normalisation from {n} clips per process "
        f"on {world} process(es): use {', '.join([*shared, f'a multiple of {k}'])} clips per "
        f"process, or another group size"
    )


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _memory_format(x: Tensor) -> torch.memory_format:
    last = torch.channels_last_3d
    # Where both formats fit (one channel, or one position) torch means the contiguous one.
    is_last = x.is_contiguous(memory_format=last) and not x.is_contiguous()
    return last if is_last else torch.contiguous_format


class _GroupedBatchNorm(torch.autograd.Function):
    """Normalise runs of `clips` clips, each run together with those of `sharers` - 1 other ranks.

    Kernels write into slices of one output, and of one gradient: concatenating the groups'
    results, or copying them from `native_batch_norm_backward`, costs another pass over memory.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, clips: int, sharers: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        out = torch.empty_like(x)
        if sharers > 1:
            mean, invstd, var = _shared_stats(x, sharers, eps)
            _scale_shift(x, mean[0], weight * invstd[0], bias, out)
        else:
            mean, invstd, var = _normalize_groups(x, weight, bias, clips, eps, out)
        ctx.save_for_backward(x, weight, mean, invstd)
        ctx.clips, ctx.sharers, ctx.eps = clips, sharers, eps
        ctx.mark_non_differentiable(mean, var)
        return out, mean, var

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, invstd = ctx.saved_tensors
        grad = grad.contiguous(memory_format=_memory_format(x))
        sums = _gradient_sums(x, grad, weight, mean, invstd, ctx)
        grad_weight, grad_bias = sums.sum(1)
        if ctx.sharers > 1:
            # The parameters' gradients stay local (as DDP expects); the input's sees all clips.
            dist.all_reduce(sums, group=_neighbours(ctx.sharers))
        grad_x = _input_gradient(x, grad, weight, mean, invstd, sums, ctx)
        return grad_x, grad_weight, grad_bias, None, None, None


def _normalize_groups(
    x: Tensor, weight: Tensor, bias: Tensor, clips: int, eps: float, out: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise each run of clips into `out`; its mean, 1/std and unbiased variance, (groups, C)."""
    mean = weight.new_empty(len(x) // clips, x.shape[1])
    invstd, running_mean, var = (
        torch.empty_like(mean),
        torch.zeros_like(mean),
        torch.ones_like(mean),
    )
    rows = zip(x.split(clips), out.split(clips), mean, invstd, running_mean, var, strict=True)
    for x_g, out_g, mean_g, invstd_g, *running in rows:
        saved = {"out": out_g, "save_mean": mean_g, "save_invstd": invstd_g}
        # With momentum 1 the "running" statistics are this group's, the variance unbiased.
        _batch_norm_out(x_g, weight, bias, *running, True, 1.0, eps, **saved)
    return mean, invstd, var


def _shared_stats(x: Tensor, sharers: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, 1/std and unbiased variance, (1, C), over the clips of `sharers` neighbouring ranks."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    var, mean = torch.var_mean(x.to(dtype), dim=(0, 2, 3, 4), correction=0)
    # Every rank fills its row, then all rows are summed: a gather that every backend has. Merging
    # means and variances is exact where sums of squares would cancel.
    table = mean.new_zeros(sharers, 2, len(mean))
    table[dist.get_rank() % sharers] = torch.stack((mean, var))
    dist.all_reduce(table, group=_neighbours(sharers))
    means, variances = table.unbind(1)
    var = variances.mean(0) + means.var(0, correction=0)
    count = sharers * x.numel() // x.shape[1]
    return means.mean(0)[None], (var + eps).rsqrt()[None], (var * (count / (count - 1)))[None]


def _gradient_sums(
    x: Tensor, grad: Tensor, weight: Tensor, mean: Tensor, invstd: Tensor, ctx: Any
) -> Tensor:
    """Per group, the gradients of weight and bias: (2, groups, C)."""
    rows = zip(x.split(ctx.clips), grad.split(ctx.clips), mean, invstd, strict=True)
    mask = [False, True, True]  # without the input's gradient, which would be a copy
    sums = [
        _batch_norm_backward(grad_g, x_g, weight, None, None, mean_g, std_g, True, ctx.eps, mask)
        for x_g, grad_g, mean_g, std_g in rows
    ]
    return torch.stack([torch.stack(s) for s in zip(*(s[1:] for s in sums), strict=True)])


def _input_gradient(
    x: Tensor, grad: Tensor, weight: Tensor, mean: Tensor, invstd: Tensor, sums: Tensor, ctx: Any
) -> Tensor:
    """dx = a·(dy − Σdy/n − (x−mean)/std · Σ(dy·(x−mean)/std)/n) with a = weight/std, per group."""
    n = ctx.sharers * ctx.clips * x.shape[2:].numel()
    a = weight * invstd
    slope, shift = a * invstd * sums[0] / -n, a * sums[1] / -n
    grad_x = torch.empty_like(x)
    groups = zip(x.split(ctx.clips), grad.split(ctx.clips), grad_x.split(ctx.clips), strict=True)
    for g, (x_g, grad_g, out_g) in enumerate(groups):
        _scale_shift(x_g, mean[g], slope[g], shift[g], out_g)
        out_g.addcmul_(grad_g, a[g].view(-1, 1, 1, 1))
    return grad_x


def _scale_shift(x: Tensor, mean: Tensor, slope: Tensor, shift: Tensor, out: Tensor) -> None:
    """out = (x − mean) · slope + shift per channel: one pass, by the kernel of BN's evaluation."""
    unused = mean.new_empty(0)
    saved = {"out": out, "save_mean": unused, "save_invstd": unused.clone()}
    _batch_norm_out(x, slope, shift, mean, torch.ones_like(mean), False, 0.0, 0.0, **saved)


_subgroups: WeakKeyDictionary[dist.ProcessGroup, dict[int, dist.ProcessGroup]] = WeakKeyDictionary()


def _neighbours(sharers: int) -> dist.ProcessGroup:
    """The process group of this rank's `sharers` neighbours, created once per default group.

    All ranks must come here for the same sizes in the same order, as they do when they train in
    step: creating groups is collective.
    """
    world = dist.group.WORLD
    assert world is not None
    known = _subgroups.setdefault(world, {world.size(): world})
    if sharers not in known:
        known[sharers] = dist.new_subgroups(sharers)[0]
    return known[sharers]
