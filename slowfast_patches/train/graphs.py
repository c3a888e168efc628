"""Forward and backward of each shape as one CUDA graph: launched at once, not kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from slowfast_patches.models.layers.dropout import ClipDropout

__all__ = ["GraphedPasses", "Passes"]

Passes = Callable[[list[Tensor], Tensor], tuple[Tensor, Tensor]]
"""Forward and backward of a mini-batch: from pathways and labels to loss and scores, with the
gradients added to those in the parameters."""


@dataclass(frozen=True)
class _Recorded:
    """A graph, the tensors that it reads and those that it writes."""

    graph: torch.cuda.CUDAGraph
    reads: tuple[Tensor, ...]
    loss: Tensor
    scores: Tensor


class GraphedPasses:
    """Forward and backward of a model on a GPU, recorded before the training and replayed in it.

    All graphs share the memory that the largest needs. Gradients lie in one tensor, which each
    graph sets to zero first; a parameter's `grad` is its part of it, and must not be replaced.
    `passes`, which is recorded, must not wait for the device.
    """

    def __init__(self, model: nn.Module, passes: Passes) -> None:
        self._passes, self._pool = passes, torch.cuda.graph_pool_handle()
        self._dropouts = [m for m in model.modules() if isinstance(m, ClipDropout)]
        self._gradients = _gradients_in_one(model)
        self._inputs: dict[int, Tensor] = {}
        self._recorded: dict[Hashable, _Recorded] = {}

    def __call__(
        self, kind: Hashable, inputs: Sequence[Tensor], labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The loss and the scores; the gradients are in the parameters. `kind` tells mini-batches
        apart that are computed in another way at the same shape. KeyError: not recorded."""
        given = (*inputs, labels, *self._masks())
        recorded = self._recorded[_key(kind, given)]
        for own, tensor in zip(recorded.reads, given, strict=True):
            own.copy_(tensor)
        recorded.graph.replay()
        # The next graph may write where these lie.
        return recorded.loss.clone(), recorded.scores.clone()

    def record(self, kind: Hashable, inputs: Sequence[Tensor], labels: Tensor) -> None:
        """Record a mini-batch's kernels; the largest comes first. One like it must have run without
        a graph before: in a recording no library can be loaded, no convolution tried."""
        given = (*inputs, labels, *self._masks())
        reads = tuple(self._input(place, tensor) for place, tensor in enumerate(given))
        self._read_masks(reads[len(inputs) + 1 :])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            loss, scores = self._run(reads, len(inputs))
        recorded = _Recorded(graph, reads, loss.detach(), scores.detach())
        self._recorded[_key(kind, given)] = recorded

    def _input(self, place: int, like: Tensor) -> Tensor:
        """A copy of a tensor, where other graphs have theirs."""
        memory = self._inputs.get(place)
        if memory is None or memory.numel() < like.numel():
            memory = self._inputs[place] = like.new_empty(like.numel())
        return memory.as_strided(like.shape, like.stride()).copy_(like)

    def _masks(self) -> list[Tensor]:
        return [dropout.kept for dropout in self._dropouts if dropout.kept is not None]

    def _read_masks(self, masks: Sequence[Tensor]) -> None:
        drawn = [dropout for dropout in self._dropouts if dropout.kept is not None]
        for dropout, mask in zip(drawn, masks, strict=True):
            dropout.kept = mask

    def _run(self, reads: Sequence[Tensor], pathways: int) -> tuple[Tensor, Tensor]:
        self._gradients.zero_()
        # A network replaces the entries of the list that it is given.
        return self._passes(list(reads[:pathways]), reads[pathways])


def _key(kind: Hashable, given: Sequence[Tensor]) -> Hashable:
    return kind, *(tuple(tensor.shape) for tensor in given)


def _gradients_in_one(model: nn.Module) -> Tensor:
    """A tensor of zeros whose parts, laid out as the parameters are, become their gradients."""
    weights = [p for p in model.parameters() if p.requires_grad]
    whole = weights[0].new_zeros(sum(p.numel() for p in weights))
    start = 0
    for weight in weights:
        weight.grad = whole.as_strided(weight.shape, weight.stride(), start)
        start += weight.numel()
    return whole
