"""Check after the first iteration that all processes train the same model."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel


def broadcasts_buffers() -> bool:
    """Return whether a DDP that copies the buffers of rank 0 runs the current forward pass."""
    wrapper = getattr(DistributedDataParallel, "_active_ddp_module", None)
    return wrapper is not None and bool(wrapper.broadcast_buffers)


def differences(model: nn.Module, *, are_copied: bool) -> tuple[str, ...]:
    """Return warnings if the processes have different weights, or copy those of rank 0.

    Every process must call this function. Weights that are divided over the processes, as by FSDP,
    are not compared.

    Args:
        model: The model after an iteration.
        are_copied: Whether the running statistics of rank 0 are copied to all processes.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    is_whole = all(type(one) is nn.Parameter for one in parameters)
    norms = [norm for norm in model.modules() if isinstance(norm, _BatchNorm)]
    running = [norm.running_mean for norm in norms if norm.running_mean is not None]
    local = (_checksum(parameters) if is_whole else 0.0, _checksum(running))
    found: list[tuple[float, float] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(found, local)
    weights = {one[0] for one in found if one}
    stats = {one[1] for one in found if one}
    texts = list[str]()
    if len(weights) > 1:
        texts.append(
            "the processes have different weights after the first iteration, because their "
            "gradients are not averaged. Compute the loss with the model that "
            "DistributedDataParallel(model) returns, and give Training the model inside"
        )
    if len(stats) > 1 and are_copied:
        texts.append(
            "DistributedDataParallel copies the BN running statistics of rank 0 to all processes "
            "in each forward. Pass broadcast_buffers=False, and call "
            "multigrid.average_running_stats(model) before you evaluate or save the model"
        )
    return tuple(texts)


def _checksum(tensors: Sequence[Tensor]) -> float:
    """Return the sum of all values."""
    return sum(float(one.detach().double().sum()) for one in tensors)
