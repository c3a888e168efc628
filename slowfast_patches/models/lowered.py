"""Half-precision weights for a training step. One operation casts all weights, or all gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from multigrid.batchnorm.shared import is_distributed

_CASTING = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layers whose weights autocast casts."""

_WEIGHTS_AT_ONCE = 16
"""Number of weights whose gradients become known together if there are several processes.

`DistributedDataParallel` can then exchange them while gradients of earlier layers are computed.
"""


class LoweredWeights:
    """Weights of the layers of a model in the data type of autocast.

    Autocast casts each weight in each forward pass, and each gradient in each backward pass. This
    class casts all of them at once, once for all micro-batches of a step. The values are the same.
    Parameters keep their names and types, except within `lowered`.

    Args:
        modules: All modules of the model. The weights of linear layers and convolutions may only be
            used by the layers' own `forward`, or by functions for which autocast casts.
        dtype: Data type of the weights within `lowered`.
    """

    def __init__(self, modules: Sequence[nn.Module], dtype: torch.dtype) -> None:
        self._places = [
            (module, name)
            for module in modules
            if isinstance(module, _CASTING)
            for name, parameter in module._parameters.items()
            if parameter is not None and parameter.dtype == torch.float32
        ]
        self._dtype = dtype
        self._weights = list[Tensor]()
        self._halves = list[Tensor]()

    @contextmanager
    def lowered(self) -> Iterator[None]:
        """Replace the weights by half-precision copies. Their gradients reach the weights."""
        given = [module._parameters[name] for module, name in self._places]
        weights: list[Any] = list(dict.fromkeys(given))  # a tied weight is cast once
        if [id(weight) for weight in weights] != [id(weight) for weight in self._weights]:
            self._weights = weights
            self._halves = [torch.empty_like(w, dtype=self._dtype) for w in weights]
        by_weight = dict[Any, Tensor]()
        for wanted in (True, False):
            some = [i for i, w in enumerate(weights) if w.requires_grad == wanted]
            step = _WEIGHTS_AT_ONCE if is_distributed() else max(1, len(some))
            for start in range(0, len(some), step):
                chosen = some[start : start + step]
                ours = [weights[i] for i in chosen]
                halves = [self._halves[i] for i in chosen]
                by_weight.update(zip(ours, _Lower.apply(halves, *ours), strict=True))  # type: ignore[no-untyped-call]
        try:
            for (module, name), weight in zip(self._places, given, strict=True):
                module._parameters[name] = by_weight[weight]  # type: ignore[assignment]
            yield
        finally:
            for (module, name), weight in zip(self._places, given, strict=True):
                module._parameters[name] = weight


class _Lower(torch.autograd.Function):
    """Copy of weights to tensors of another type. The backward pass copies the gradients back."""

    @staticmethod
    def forward(ctx: Any, halves: list[Tensor], *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.weights = weights
        ctx.set_materialize_grads(False)  # a layer that was not called has no gradient
        torch._foreach_copy_(halves, list(weights))
        return tuple(half.detach() for half in halves)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        raised = [
            None if grad is None else torch.empty_like(weight)
            for grad, weight in zip(grads, ctx.weights, strict=True)
        ]
        new = [value for value in raised if value is not None]
        if new:
            torch._foreach_copy_(new, [grad for grad in grads if grad is not None])
        return None, *raised
