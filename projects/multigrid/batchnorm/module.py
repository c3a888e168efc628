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
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from multigrid.batchnorm.shared import SharedBatchNorm, arrange

__all__ = ["GroupedBatchNorm3d", "convert_batchnorm", "group_order", "set_group_size"]

_VECTOR = 8
"""Values that torch's CPU kernel takes at once. For clips of fewer places it is several times as
fast where channels lie side by side, with what it costs to bring them there and back."""


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
    An input in channels_last_3d is copied there and back, so that the output has its format.
    `group_order` arranges clips so that the groups are runs of a stream, whatever the number of
    processes.

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
        clips, sharers = arrange(len(input), k)
        if clips * sharers * input.shape[2:].numel() < 2:
            raise ValueError(
                f"batch normalisation needs more than 1 value per channel and group, got input "
                f"{tuple(input.shape)} with group_size {k}: enlarge the group or the clips"
            )
        groups = len(input) // clips
        if sharers > 1:
            output, means, variances = SharedBatchNorm.apply(  # type: ignore[no-untyped-call]
                input, *self._affine(input), sharers, self.eps
            )
            mean = means.mean(0)
            var = variances.mean(0)
        else:
            output, mean, var = self._folded(input, groups)
            if _is_channels_last(input):
                output = output.contiguous(memory_format=torch.channels_last_3d)
        with torch.no_grad():
            self._track(mean, var)
        assert isinstance(output, Tensor)
        return output

    def _folded(self, x: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor]:
        """Output, and the groups' average mean and variance (C,).

        Torch's own kernel sees a group's channel in each channel, and tracks them: from zero, by a
        step of 1/G, it leaves each group's over G, so that their sum is the average.
        """
        weight, bias = (_of_all(vector, groups) for vector in self._affine(x))
        stats = weight.new_zeros(2, groups, x.shape[1])
        means, variances = stats.view(2, -1).unbind(0)
        folded = x.reshape(-1, len(means), x.shape[2:].numel())
        clips, _, places = folded.shape
        by_place = x.device.type == "cpu" and places < _VECTOR
        if by_place:
            folded = folded.transpose(1, 2).flatten(0, 1)
        output = F.batch_norm(folded, means, variances, weight, bias, True, 1 / groups, self.eps)
        if by_place:
            output = output.view(clips, places, -1).transpose(1, 2)
        mean, var = stats.sum(1).unbind(0)
        return output.reshape(x.shape), mean, var

    def _affine(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scale and shift; statistics and parameters of a half-precision input are single."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        if self.weight is None:
            weight = torch.ones(self.num_features, dtype=dtype, device=x.device)
        else:
            weight = self.weight.to(dtype)
        return weight, torch.zeros_like(weight) if self.bias is None else self.bias.to(dtype)

    def _track(self, mean: Tensor, var: Tensor) -> None:
        """Move the running statistics by one step towards the averages (C,) over the groups of
        their means and unbiased variances."""
        if self.track_running_stats:
            step = self._count()
            for running, new in ((self.running_mean, mean), (self.running_var, var)):
                assert running is not None
                running.lerp_(new.to(running.dtype), step)

    def _count(self) -> float:
        """Count a forward; how far the running statistics move in it."""
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        # momentum None: the cumulative average, as in nn.BatchNorm3d
        return 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum

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


def _is_channels_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last_3d) and not x.is_contiguous()


def _of_all(vector: Tensor, groups: int) -> Tensor:
    """A copy (G·C,) of (C,) for each group, in less than `repeat` takes, backwards too."""
    if vector.device.type != "cpu" or torch.compiler.is_compiling():
        # Elsewhere an index's gradient is summed in no fixed order.
        return vector.expand(groups, -1).contiguous().view(-1)
    return vector.index_select(0, _places(len(vector), groups))


@cache
def _places(channels: int, groups: int) -> Tensor:
    """0 to C - 1 for each group."""
    with torch.inference_mode(False):  # backward passes need it, whichever forward is first
        return torch.arange(channels, device="cpu").repeat(groups)


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
    """Other batch normalisation is not converted: its input does not tell its number of clips."""
    others = [
        f"{name or 'the module'} ({type(norm).__name__})"
        for name, norm in module.named_modules()
        if isinstance(norm, _BatchNorm)
        if type(norm) not in (nn.BatchNorm3d, GroupedBatchNorm3d)
    ]
    if others:
        raise ValueError(
            f"only nn.BatchNorm3d can take its statistics over groups of clips, not "
            f"{', '.join(others)}: leave out convert_sync_batchnorm, since groups are shared "
            "between processes anyway; put nn.BatchNorm3d in its place (frames as the T of "
            "(N, C, T, H, W)); or convert a part of the model, as in model.trunk = "
            "convert_batchnorm(model.trunk): the others keep the statistics of each process's batch"
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

    Warns if there are no such modules.
    """
    if group_size is not None and group_size < 1:
        raise ValueError(f"group_size must be at least 1 clip, or None, got {group_size}")
    norms = [m for m in model.modules() if isinstance(m, GroupedBatchNorm3d)]
    for norm in norms:
        norm.group_size = group_size
    if group_size is not None and not norms:
        warnings.warn(
            "a group_size has no effect: the model has no GroupedBatchNorm3d; call "
            "convert_batchnorm(model) once after building it, or make_schedule(bn_size=None) if "
            "it has no batch normalisation",
            stacklevel=2,
        )
