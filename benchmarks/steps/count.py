"""Count the operations that a training step dispatches, on meta tensors.

The CPU dispatches each operation of a step, and the device computes it. If the operations are
short, a step takes as long as the CPU needs to dispatch them. Meta tensors have no data, so steps
of any size are counted in seconds without a GPU. They take the code path for GPUs.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import optimizer as torch_optimizer
from torch.overrides import TorchFunctionMode
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from multigrid import Batch, ScheduleStep
from slowfast_patches.models import solver
from slowfast_patches.train import step as step_module
from steps.case import Steps

META = torch.device("meta")

PLACES = ("input", "forward", "backward", "update")
"""Parts of a step. With several micro-batches, the input of all but the first is in "update"."""

_NO_KERNEL = ("empty", "new_empty", "detach", "alias", "lift_fresh", "_unsafe_view")
"""Beginnings of the names of operations without a kernel, besides views."""

_CONVOLUTIONS = {torch.conv1d, torch.conv2d, torch.conv3d}
_LOWER = {
    *(*_CONVOLUTIONS, F.linear, F.scaled_dot_product_attention, torch.einsum),
    *(torch.matmul, torch.bmm, torch.mm, torch.addmm, torch.baddbmm),
    *(Tensor.matmul, Tensor.bmm, Tensor.mm, Tensor.__matmul__),
}
_UPPER = {
    *(F.cross_entropy, F.binary_cross_entropy_with_logits, F.softmax, F.layer_norm),
    *(torch.softmax, torch.log_softmax, Tensor.softmax),
}
"""Functions that autocast computes in bfloat16 and in float32, as far as our models use them."""

Counts = Counter[tuple[str, str]]
"""Number of operations by place and name."""


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that counts all operations except views and allocations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.place = PLACES[0]
        self.counts: Counts = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        schema = func._schema
        name = schema.name.removeprefix("aten::")
        infos = [result.alias_info for result in schema.returns]
        is_view = any(info is not None and not info.is_write for info in infos)
        values = (*schema.arguments, *schema.returns)
        has_tensors = any("Tensor" in str(value.type) for value in values)
        if has_tensors and not is_view and not name.startswith(_NO_KERNEL):
            self.counts[self.place, name] += 1
        if name.startswith("_fused_"):  # fused optimizers do not accept meta tensors
            return None
        return func(*args, **(kwargs or {}))

    def mark(self, stage: str) -> None:
        """Count the following operations in the stage after `stage`."""
        if stage in PLACES[:-1]:
            self.place = PLACES[PLACES.index(stage) + 1]


class _LikeGPU(TorchFunctionMode):
    """Mode that treats meta tensors like tensors on a GPU under autocast to bfloat16.

    As in `torch.autocast`, which does not support meta tensors, a parameter is cast once while the
    mode is active. Convolutions keep the memory format of their input, as those of cuDNN do.
    """

    def __init__(self, casts: bool) -> None:
        super().__init__()
        self._casts = casts
        self._cached = dict[Tensor, Tensor]()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._casts and func in _LOWER:
            args, kwargs = tree_map(self._lower, (args, kwargs))
        elif self._casts and func in _UPPER:
            args, kwargs = tree_map(_raise, (args, kwargs))
        x = args[0] if args else None
        last = torch.channels_last_3d
        if func not in _CONVOLUTIONS or not isinstance(x, Tensor) or x.is_contiguous():
            return func(*args, **kwargs)
        if not x.is_contiguous(memory_format=last):
            return func(*args, **kwargs)
        output = func(_LastGradient.apply(x), *args[1:], **kwargs)  # type: ignore[no-untyped-call]
        return _LastOutput.apply(output)  # type: ignore[no-untyped-call]

    def _lower(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dtype != torch.float32:
            return value
        if not (value.is_leaf and value.requires_grad):
            return value.to(torch.bfloat16)
        if value not in self._cached:
            self._cached[value] = value.to(torch.bfloat16)
        return self._cached[value]


def _raise(value: Any) -> Any:
    is_half = isinstance(value, Tensor) and value.dtype == torch.bfloat16
    return value.float() if is_half else value


class _LastOutput(torch.autograd.Function):
    """Identity function whose output is in channels_last_3d."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.empty_like(x, memory_format=torch.channels_last_3d)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0]


class _LastGradient(torch.autograd.Function):
    """Identity function whose gradient is in channels_last_3d."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return torch.empty_like(grads[0], memory_format=torch.channels_last_3d)


@contextmanager
def meta_like_gpu() -> Iterator[None]:
    """Let autocast and torch's optimizers treat meta tensors like tensors on a GPU."""
    supported = [*_foreach_utils._get_fused_kernels_supported_devices(), "meta"]
    names = ("_get_foreach_kernels_supported_devices", "_get_fused_kernels_supported_devices")

    def autocast(recipe: Any, device: torch.device) -> _LikeGPU:
        return _LikeGPU(solver.is_mixed(recipe))

    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(step_module, "autocast", autocast))
        for module, name in itertools.product((_foreach_utils, torch_optimizer), names):
            if hasattr(module, name):
                patches.enter_context(mock.patch.object(module, name, return_value=supported))
        yield


def count_operations(steps: Steps, step: ScheduleStep, batch: Batch) -> Counts:
    """Take two training steps on the meta device, and count the operations of the second one.

    Call this within `meta_like_gpu`.
    """
    _, optimizer = steps.model_and_optimizer(step)
    for group in optimizer.param_groups:
        if not group.get("fused"):
            group["foreach"] = True  # as torch chooses on a GPU
    counting = _Counting()
    with counting:
        steps.take(step, batch, counting.mark)  # the first step allocates moments
        counting.counts = Counter()
        counting.place = PLACES[0]
        steps.take(step, batch, counting.mark)
    return counting.counts


def total(counts: Counts, place: str | None = None) -> int:
    """Return the number of operations in all stages of a step, or in one stage."""
    return sum(n for (where, _), n in counts.items() if place in (None, where))


def by_name(counts: Counts) -> dict[str, int]:
    """Return the number of operations of each name, in descending order."""
    names = Counter[str]()
    for (_, name), n in counts.items():
        names[name] += n
    return dict(names.most_common())
