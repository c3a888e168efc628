"""One layout of the gradients in DistributedDataParallel for all iterations of a training."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from multigrid.errors import MultigridError
from multigrid.user_warning import warn_user


def fix_gradient_layout(network: nn.Module) -> None:
    """Make a resumed training on three or more processes equal to an uninterrupted one.

    DistributedDataParallel (DDP) adds the gradients of the processes in buckets. After the first
    backward pass of a process, it sorts the gradients into other buckets, in the order in which
    they became ready. The place of a gradient in its bucket determines the order in which the
    values of three or more processes are added, and so the rounding errors. A resumed training
    would therefore round its first iteration differently.

    This function makes DDP sort the gradients before the first iteration, into the reverse of the
    order in which the model registers its parameters. The exchange of gradients overlaps best with
    the backward pass if the model registers modules in the order in which it runs them.

    Call this function in every process, before the first backward pass. It does nothing if the
    network is not in DDP, or if DDP keeps its first layout (with `find_unused_parameters=True`). It
    warns if DDP was created with `static_graph=True`, which allows no other layout. The gradients,
    parameters and buffers of the model stay the same.

    Args:
        network: The model in DistributedDataParallel.

    Raises:
        ValueError: The network has had a backward pass before.
    """
    if not isinstance(network, DistributedDataParallel):
        return
    if network.static_graph:
        # Such a network detects in its first iteration which parameters have gradients.
        warn_user(
            "DistributedDataParallel was created with static_graph=True, so a resumed training on "
            "three or more processes differs from an uninterrupted one by rounding errors. Leave "
            "static_graph out"
        )
        return
    if network.find_unused_parameters:
        return
    model = network.module
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = [parameter.grad for parameter in learning]
    try:
        _set_gradients(learning, [None] * len(learning))
        network.module = _ZeroGradients(model)
        with torch.enable_grad():
            zero = network(torch.zeros((), device=learning[0].device))
            if network._has_rebuilt_buckets:
                raise MultigridError(
                    "DistributedDataParallel has chosen the layout of the gradients in an earlier "
                    "backward pass. Call fix_gradient_layout directly after the model is wrapped"
                )
            zero.backward()
    finally:
        network.module = model
        _set_gradients(learning, gradients)


def _set_gradients(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient


class _ZeroGradients(nn.Module):
    """Stand-in for a model, whose gradients are 0 and become ready from the last to the first."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = model  # has the buffers that DDP may broadcast before a forward pass

    def forward(self, total: Tensor) -> Tensor:
        """Return 0. The backward pass visits the operations from the newest to the oldest."""
        for parameter in self._model.parameters():
            if parameter.requires_grad:
                total = total + 0 * parameter.sum()
        return total
