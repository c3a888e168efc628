"""The small operations of all BN layers of a model, done for all layers at once.

A layer can do everything alone: repeat scale and shift for its groups, average the statistics of
the groups, and update its running statistics. These are many operations on few values each, so most
of their time is spent on launching them. `NormsTogether` does them for all layers at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from multigrid.batchnorm.module import GroupedBatchNorm3d
from multigrid.batchnorm.shared import is_distributed
from multigrid.step_values import Place, Stats, StepValues

_LAYERS_AT_ONCE = 16
"""Number of layers whose gradients become known together if there are several processes.

`DistributedDataParallel` can then exchange them while gradients of earlier layers are computed.
"""


class _Repeated(NamedTuple):
    """Scales and shifts of some layers, repeated once per group."""

    norms: list[GroupedBatchNorm3d]
    layout: _Layout
    vectors: list[Tensor]


class NormsTogether:
    """Small operations of the BN layers of a model, done for all layers at once.

        norms.before_forward(clips)
        ...                             # forward
        norms.after_forward()           # counters and running statistics are updated here
        ...                             # backward
        norms.end()                     # before the weights change

    The results equal those of layers that work alone, up to rounding in sums over groups. Layers in
    evaluation mode are left out. Layers without scale or running statistics work alone, and so do
    layers with a cumulative average (momentum None).

    Args:
        norms: The layers.
        values: The values of the step that all these layers read.
    """

    def __init__(self, norms: Sequence[GroupedBatchNorm3d], values: StepValues) -> None:
        self.norms = norms
        self.values = values
        self._layouts = dict[tuple[Any, ...], _Layout]()
        self._repeated = dict[int, _Repeated]()
        self._places = dict[GroupedBatchNorm3d, Place]()
        self._stats: Tensor | None = None

    def before_forward(self, clips: int) -> None:
        """Prepare the layers for a forward pass with this number of clips on this process."""
        k = self.values.group_size
        groups = 1 if k is None or clips % k else clips // k
        norms = [norm for norm in self.norms if _can_join(norm)]
        self._places = places = {norm: Place() for norm in norms}
        self.values.places = dict[nn.Module, Place](places.items())
        if groups == 1 or not norms:
            return
        if groups not in self._repeated:
            self._repeated[groups] = self._repeat(norms, groups)
        alike, layout, vectors = self._repeated[groups]
        dtype, device = _kind(alike[0])
        self._stats = torch.zeros(layout.length, dtype=dtype, device=device)
        stats = layout.split(self._stats)
        for i, norm in enumerate(alike):
            if (place := places.get(norm)) is not None:
                place.weight, place.bias = vectors[2 * i], vectors[2 * i + 1]
                place.stats = stats[2 * i], stats[2 * i + 1]

    @torch.no_grad()
    def after_forward(self) -> None:
        """Update the counters and running statistics of the layers that were called.

        The backward pass may call layers again, to recompute activations. These calls do not count.
        """
        for number in count():
            places = self._places.items()
            called = {norm: p.calls[number] for norm, p in places if len(p.calls) > number}
            if not called:
                return
            torch._foreach_add_([_buffer(norm, "num_batches_tracked") for norm in called], 1)
            stats = {norm: value for norm, value in called.items() if value is not None}
            if stats:
                self._track(stats, is_first=number == 0)

    def end(self) -> None:
        """Let the layers work alone again, and forget the repeated scales and shifts."""
        self.values.places = {}
        self._places = {}
        self._repeated = {}
        self._stats = None

    def _repeat(self, norms: Sequence[GroupedBatchNorm3d], groups: int) -> _Repeated:
        """Repeat scale and shift of all layers whose tensors have the same type and device."""
        kind = _kind(norms[0])
        alike = [norm for norm in norms if _kind(norm) == kind]
        step = _LAYERS_AT_ONCE if is_distributed() else len(alike)
        vectors = list[Tensor]()
        for start in range(0, len(alike), step):
            some = alike[start : start + step]
            given = [norm._parameters[name] for norm in some for name in ("weight", "bias")]
            layout = self._layout(some, groups)
            vectors += _Repeat.apply(layout, *given)  # type: ignore[no-untyped-call]
        return _Repeated(alike, self._layout(alike, groups), vectors)

    def _layout(self, norms: Sequence[GroupedBatchNorm3d], groups: int) -> _Layout:
        sizes = tuple(norm.num_features for norm in norms for _ in range(2))
        device = _kind(norms[0])[1]
        key = (sizes, groups, device)
        if key not in self._layouts:
            self._layouts[key] = _Layout(sizes, groups, device)
        return self._layouts[key]

    def _track(self, stats: dict[GroupedBatchNorm3d, Stats], *, is_first: bool) -> None:
        """Update the running statistics of layers with the statistics of one call each."""
        norm, (mean, _) = next(iter(stats.items()))
        repeated = self._repeated[len(mean) // norm.num_features]
        if is_first and list(stats) == repeated.norms:
            assert self._stats is not None
            averages = list(repeated.layout.sum(self._stats))
        else:
            averages = [
                values.view(-1, norm.num_features).sum(0)
                for norm, pair in stats.items()
                for values in pair
            ]
        by_momentum = defaultdict[float, tuple[list[Tensor], list[Tensor]]](lambda: ([], []))
        for i, norm in enumerate(stats):
            assert norm.momentum is not None
            running, new = by_momentum[norm.momentum]
            running += [_buffer(norm, "running_mean"), _buffer(norm, "running_var")]
            new += averages[2 * i : 2 * i + 2]
        for momentum, (running, new) in by_momentum.items():
            torch._foreach_lerp_(running, new, momentum)


def _can_join(norm: GroupedBatchNorm3d) -> bool:
    """Return whether a layer is in training mode, and has all that `NormsTogether` handles.

    Layers in half precision are left out, because their statistics are computed in float32.
    """
    weight, running = norm._parameters["weight"], norm._buffers["running_mean"]
    return (
        norm.training
        and norm.momentum is not None
        and weight is not None
        and norm._parameters["bias"] is not None
        and running is not None
        and running.dtype == weight.dtype
        and weight.dtype in (torch.float32, torch.float64)
        and norm._buffers["num_batches_tracked"] is not None
    )


def _buffer(norm: GroupedBatchNorm3d, name: str) -> Tensor:
    """Return a buffer of a layer. This is faster than reading it as an attribute."""
    buffer = norm._buffers[name]
    assert buffer is not None
    return buffer


def _kind(norm: GroupedBatchNorm3d) -> tuple[torch.dtype, torch.device]:
    """Return type and device of the scale of a layer."""
    weight = norm._parameters["weight"]
    assert weight is not None
    return weight.dtype, weight.device


class _Layout:
    """Vectors of several sizes in one tensor, each repeated once per group.

    Args:
        sizes: Sizes of the vectors.
        groups: Number of groups.
        device: Device of the vectors.
    """

    def __init__(self, sizes: Sequence[int], groups: int, device: torch.device) -> None:
        self.sizes = list(sizes)
        self.groups = groups
        self.lengths = [groups * size for size in sizes]
        self.length = sum(self.lengths)
        values = torch.split(torch.arange(sum(sizes), device="cpu"), self.sizes)
        index = torch.cat([value.repeat(groups) for value in values])
        order = index.argsort().view(-1, groups).t().flatten()
        self._index = index.int().to(device)
        self._order = order.int().to(device)

    def repeat(self, vectors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Repeat vectors (C,) once per group, (G·C,)."""
        return self.split(torch.cat(list(vectors)).index_select(0, self._index))

    def split(self, values: Tensor) -> tuple[Tensor, ...]:
        """Return views of the repeated vectors in a tensor of `length`."""
        return torch.split(values, self.lengths)

    def sum(self, values: Tensor) -> tuple[Tensor, ...]:
        """Sum each repeated vector (G·C,) in a tensor of `length` over the groups, to (C,)."""
        total = values.index_select(0, self._order).view(self.groups, -1).sum(0)
        return torch.split(total, self.sizes)


class _Repeat(torch.autograd.Function):
    """Repetition of vectors for each group. The backward pass sums all gradients at once."""

    @staticmethod
    def forward(ctx: Any, layout: _Layout, *vectors: Tensor) -> tuple[Tensor, ...]:
        ctx.layout = layout
        ctx.set_materialize_grads(False)  # a layer that was not called has no gradient
        return layout.repeat(vectors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        layout = ctx.layout
        known = [grad for grad in grads if grad is not None]
        if len(known) == len(grads):
            return None, *layout.sum(torch.cat(known))
        return None, *(g if g is None else g.view(layout.groups, -1).sum(0) for g in grads)
