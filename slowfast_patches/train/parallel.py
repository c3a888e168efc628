"""The model as several processes train it together."""

from __future__ import annotations

import warnings

from torch import nn

from slowfast_patches.utils.distributed import World

__all__ = ["parallel"]


def parallel(model: nn.Module, world: World) -> nn.Module:
    """The model, its gradients averaged over processes where there are several.

    Buffers are not broadcast: running statistics are averaged where they are used.
    """
    if world.size == 1:
        return model
    ids = [world.device] if world.device.type == "cuda" else None
    with warnings.catch_warnings():
        # torch 2.13 announces another name for it, which earlier releases do not have.
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        return nn.parallel.DistributedDataParallel(
            model, device_ids=ids, broadcast_buffers=False, gradient_as_bucket_view=True
        )
