"""What a step exchanges: gradients, in DDP's buckets, and the statistics of shared BN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import torch.distributed as dist
from torch import nn

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.models.build import build_on_meta
from slowfast_patches.models.flops import flops_by_module

__all__ = [
    "BACKWARD",
    "Bucket",
    "Exchange",
    "exchange_of",
    "exchange_of_model",
    "overlapped_seconds",
]

BACKWARD = 2 / 3
"""Share of backward in a step: for each product of forward it has two, for the inputs and for the
weights."""

_BUCKET_BYTES = [1024**2, 25 * 1024**2]
"""At which DDP closes its first bucket, and the others, by default."""


class Bucket(NamedTuple):
    """Gradients that travel together: their bytes, and the share of backward after which all of
    them are there."""

    size: int
    ready: float


class Exchange(NamedTuple):
    """What a model exchanges in a step: its buckets for clips of (frames, crop), in their order,
    and the channels of each BN layer."""

    buckets: Callable[[int, int], tuple[Bucket, ...]]
    norms: tuple[int, ...]


def exchange_of(recipe: Recipe) -> Exchange:
    """What the model of a recipe exchanges."""
    return exchange_of_model(build_on_meta(recipe), flops_by_module(recipe))


def exchange_of_model(model: nn.Module, flops: Callable[[int, int], dict[str, float]]) -> Exchange:
    """What a model exchanges; `flops` counts the operations of its modules for (frames, crop).

    Gradients come in the reverse of the parameters' order, each when backward is through with its
    module, and backward's time is spread over the modules as their operations are. A bucket is
    closed, by DDP's own rule, by the gradient with which it reaches its limit.
    """
    parameters = list(model.named_parameters())[::-1]
    gradients = [parameter.detach() for _, parameter in parameters]
    indices, _ = dist._compute_bucket_assignment_by_size(gradients, _BUCKET_BYTES)
    names = [name.rpartition(".")[0] for name, _ in parameters]

    @cache
    def buckets(frames: int, crop: int) -> tuple[Bucket, ...]:
        ready = _ready(names, flops(frames, crop))
        return tuple(
            Bucket(sum(gradients[i].nbytes for i in bucket), max(ready[i] for i in bucket))
            for bucket in indices
        )

    norms = tuple(m.num_features for m in model.modules() if isinstance(m, nn.BatchNorm3d))
    return Exchange(buckets, norms)


def _ready(names: Sequence[str], flops: dict[str, float]) -> list[float]:
    """The share of backward that is done after each of the parameters, by their modules' names."""
    done, after = 0.0, dict[str, float]()
    for name in dict.fromkeys(names):
        done += flops.get(name, 0.0)
        after[name] = done
    return [after[name] / done for name in names]


def overlapped_seconds(
    buckets: Sequence[Bucket], backward: float, all_reduce: Callable[[float], float]
) -> tuple[float, float]:
    """Seconds of the exchange of the buckets, and those of them that are left after backward.

    A bucket starts when it is ready and the one before it has arrived, as in DDP. `buckets` are in
    the order in which they are sent, `backward` its seconds, `all_reduce` those for some bytes.
    """
    total = end = 0.0
    for bucket in buckets:
        seconds = all_reduce(bucket.size)
        total, end = total + seconds, max(end, bucket.ready * backward) + seconds
    return total, max(0.0, end - backward)
