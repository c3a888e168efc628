"""Batch normalisation over a fixed number of clips (paper §3.2).

Multigrid training changes the number of clips in a batch. Statistics over more clips are less noisy
and regularise less. The statistics are therefore always computed over groups of exactly k clips,
whatever the batch size and the number of processes. k is 8, or 16 and 32 where the short cycle
enlarges the batch.

`GroupedBatchNorm3d` is an `nn.BatchNorm3d` with a group size. All layers of a model have the same
group size. Call `convert_batchnorm` once, after building a model, to convert every
`nn.BatchNorm3d`. Then `set_group_size` changes k from iteration to iteration.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from multigrid.batchnorm.shared import SharedBatchNorm, arrange
from multigrid.errors import MultigridError
from multigrid.step_values import ReadsStep, Stats, StepValues, share_values
from multigrid.user_warning import warn_user

_VECTOR = 8
"""Values that torch's CPU kernel processes at once.

For clips with fewer positions per channel, the kernel is several times as fast if channels are
contiguous, even with the cost of the two transpositions.
"""


class GroupedBatchNorm3d(ReadsStep, nn.BatchNorm3d):
    """`nn.BatchNorm3d` whose training statistics are taken over groups of `group_size` clips.

    Input and output are (N, C, T, H, W), where N is the number of clips on this process. In
    training, with k = group_size:

    - k is None or N: the module behaves like `nn.BatchNorm3d`.
    - k < N: the clips form G = N/k groups. Group g has the clips g, g + G, g + 2G, ..., and each
      group is normalised by its own mean and variance.
    - k > N: with m = k/N, the ranks [j·m, (j+1)·m) are group j and share their statistics. Form
      their process groups first, with `form_groups` or `form_bn_process_groups`.

    With None, statistics cover the clips of one process, so results depend on the number of
    processes. With a group size, results do not depend on it.

    A group has every G-th clip so that (N, C, T, H, W) can be viewed as (k, G·C, T, H, W), where
    each channel belongs to one group. One call of torch's kernel then normalises all groups without
    copying a contiguous input. An input in channels_last_3d is copied twice, and the output has the
    same memory format. Use `group_order` to arrange clips so that each group is a contiguous run of
    the stream, whatever the number of processes.

    Each forward updates the running statistics once, towards the average mean and unbiased variance
    of this process's groups. Evaluation, the constructor and the state dict are those of
    `nn.BatchNorm3d`.

    Raises:
        ValueError: In training, if the clips cannot be arranged in groups of k.
    """

    @property
    def group_size(self) -> int | None:
        """Clips per group, or None for all clips of a process.

        Setting this changes a single layer. `set_group_size` changes all layers of a model.
        """
        return self.step_values.group_size

    @group_size.setter
    def group_size(self, value: int | None) -> None:
        self.step_values = StepValues(value)

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        k = self.step_values.group_size
        # The compiler fuses small operations itself.
        place = None if torch.compiler.is_compiling() else self.step_values.places.get(self)
        if k is None or k == len(input):
            if place is None:
                return super().forward(input)
            self._check_input_dim(input)
            place.calls.append(None)
            tensors = (self.running_mean, self.running_var, self.weight, self.bias)
            assert self.momentum is not None  # such a layer has no place
            return F.batch_norm(input, *tensors, True, self.momentum, self.eps)
        self._check_input_dim(input)
        clips, ranks_per_group = arrange(len(input), k)
        groups = len(input) // clips
        if ranks_per_group > 1:
            output, *moments = SharedBatchNorm.apply(  # type: ignore[no-untyped-call]
                input, *self._affine(input), ranks_per_group, self.eps
            )
            self._track(*moments)
            assert isinstance(output, Tensor)
            return output
        if place is not None and place.fits(input, groups * self.num_features):
            output = self._folded(input, place.weight, place.bias, place.next_stats())
        else:
            weight, bias = (_repeat_per_group(vector, groups) for vector in self._affine(input))
            sums = weight.detach().new_zeros(2, groups, self.num_features)
            means, variances = sums.view(2, -1).unbind(0)
            output = self._folded(input, weight, bias, (means, variances))
            self._track(*sums.sum(1).unbind(0))
        return output

    def _folded(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, stats: Stats
    ) -> Tensor:
        """Normalise each local group by its own statistics.

        The groups are folded into the channels. torch's kernel updates `stats` as running
        statistics with a momentum of 1/G. `stats` then contains 1/G of the statistics of each
        group, so their sum over the groups is the average.

        Args:
            x: The input.
            weight: Scale, repeated for each group, (G·C,).
            bias: Shift, repeated for each group.
            stats: Zeros, which are replaced by 1/G of the mean and the unbiased variance.

        Returns:
            The output, in the memory format of the input.
        """
        means, variances = stats
        groups = len(means) // x.shape[1]
        folded = x.reshape(-1, len(means), x.shape[2:].numel())
        clips, _, places = folded.shape
        by_place = x.device.type == "cpu" and places < _VECTOR
        if by_place:
            folded = folded.transpose(1, 2).flatten(0, 1)
        output = F.batch_norm(folded, means, variances, weight, bias, True, 1 / groups, self.eps)
        if by_place:
            output = output.view(clips, places, -1).transpose(1, 2)
        if _is_channels_last(x):
            return output.reshape(x.shape).contiguous(memory_format=torch.channels_last_3d)
        if not output.is_contiguous():
            return output.reshape(x.shape)
        # The output must not be a view. If ReLU changed a view in place, autograd would copy it.
        unfolded: Tensor = torch.ops.aten._unsafe_view(output, x.shape)
        return unfolded

    def _affine(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return scale and shift, in float32 or float64."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        if self.weight is None:
            weight = torch.ones(self.num_features, dtype=dtype, device=x.device)
        else:
            weight = self.weight.to(dtype)
        return weight, torch.zeros_like(weight) if self.bias is None else self.bias.to(dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, var: Tensor) -> None:
        """Update the running statistics with the groups' average mean and variance, (C,)."""
        if self.num_batches_tracked is None or not self.track_running_stats:
            return
        self.num_batches_tracked.add_(1)
        # As in nn.BatchNorm3d, a momentum of None means a cumulative average.
        step = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        for running, new in ((self.running_mean, mean), (self.running_var, var)):
            assert running is not None
            running.lerp_(new.to(running.dtype), step)


def group_order(clips: int, group_size: int | None) -> list[int]:
    """Return the order of clips in which each BN group is a contiguous run of the stream.

    Put clip `group_order(n, k)[j]` of the run at index j of the batch. If rank r takes the r-th run
    of the global batch in this order, the groups do not depend on the number of processes.

    Args:
        clips: The number of clips on this process.
        group_size: Clips per group, or None for no groups.
    """
    if group_size is None or clips % group_size:
        return list(range(clips))
    groups = clips // group_size
    return [(j % groups) * group_size + j // groups for j in range(clips)]


def _is_channels_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last_3d) and not x.is_contiguous()


def _repeat_per_group(vector: Tensor, groups: int) -> Tensor:
    """Repeat a vector (C,) once per group, (G·C,); faster than `Tensor.repeat`."""
    return vector.expand(groups, -1).contiguous().view(-1)  # batch_norm needs a stride of 1


def convert_batchnorm(module: nn.Module) -> nn.Module:
    """Replace every `nn.BatchNorm3d` in `module` by a `GroupedBatchNorm3d`.

    The new modules keep the parameter and buffer objects, hooks and extra attributes of the old
    ones under the same names, so optimizers and state dicts stay valid. A module that is used twice
    stays one module.

    Returns:
        `module` itself, or its replacement if it is an `nn.BatchNorm3d`.

    Raises:
        ValueError: `module` contains another class of batch normalisation. Nothing is converted.
    """
    grouped = dict[nn.Module | None, nn.Module]()
    values = StepValues()
    for name, norm in module.named_modules():
        if type(norm) is nn.BatchNorm3d:
            grouped[norm] = GroupedBatchNorm3d.__new__(GroupedBatchNorm3d)
            grouped[norm].__dict__.update(norm.__dict__, step_values=values)
        elif isinstance(norm, _BatchNorm) and not isinstance(norm, GroupedBatchNorm3d):
            raise MultigridError(
                f"only nn.BatchNorm3d layers can be converted, but the model contains {name} "
                f"({type(norm).__name__}). If it comes from convert_sync_batchnorm, remove that "
                "call: converted layers already share statistics between processes. Otherwise "
                "replace it by nn.BatchNorm3d with inputs (N, C, T, H, W), or convert only a part "
                "of the model: model.trunk = convert_batchnorm(model.trunk). Layers that are not "
                "converted compute their statistics over the clips of the process"
            )
    for parent in module.modules():
        for name, child in parent._modules.items():
            parent._modules[name] = grouped.get(child, child)
    return grouped.get(module, module)


def set_group_size(model: nn.Module, group_size: int | None) -> None:
    """Set the number of clips per group of every `GroupedBatchNorm3d` in `model`.

    Warns if `model` has no such module.

    Args:
        model: The model, after `convert_batchnorm`.
        group_size: Clips per group, or None for all clips of a process.

    Raises:
        ValueError: `group_size` is below 1.
    """
    if group_size is not None and group_size < 1:
        raise MultigridError(
            f"group_size is {group_size}, but must be at least 1 clip, or None for all clips of a "
            "process"
        )
    norms = [m for m in model.modules() if isinstance(m, GroupedBatchNorm3d)]
    share_values(norms, StepValues(group_size))
    if group_size is not None and not norms:
        warn_unconverted()


def warn_unconverted() -> None:
    """Warn that a group size has no effect, because a model has no `GroupedBatchNorm3d`."""
    warn_user(
        "group_size has no effect because the model has no GroupedBatchNorm3d. Call "
        "convert_batchnorm(model) once after building it, or make_schedule(bn_group_size=None) if "
        "it has no batch normalisation"
    )
