"""DistributedDataParallel (DDP): wrapping, and the parameters that have no gradient in it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from multigrid import fix_gradient_layout
from slowfast_patches.utils.errors import RunError
from slowfast_patches.utils.tables import shorten_list

_ADVICE = (
    "With several processes, the loss must depend on each of them in each iteration, because the "
    "processes add their gradients. If a parameter is never used, delete it from the model, or set "
    "its requires_grad to False. If only some iterations use it, add 0 * parameter.sum() to the "
    "output of the model"
)


def in_parallel(network: nn.Module, device: torch.device) -> nn.Module:
    """Wrap a network in DistributedDataParallel, with the layout of the gradients fixed.

    Do not broadcast buffers, because the running statistics are averaged over the ranks before each
    validation and scheduled checkpoint.
    """
    ids = [device] if device.type == "cuda" else None
    with warnings.catch_warnings():
        # torch 2.13 renames `broadcast_buffers`. Earlier releases only have the old name.
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        wrapped = DistributedDataParallel(
            network, device_ids=ids, broadcast_buffers=False, gradient_as_bucket_view=True
        )
    fix_gradient_layout(wrapped)
    return wrapped


def check_gradients(model: nn.Module) -> None:
    """Check that a backward pass has reached all parameters. Call this before the optimizer step.

    Otherwise, DDP has not added the gradients of the processes. It would only raise an error at the
    next iteration, after a step with wrong gradients.

    Args:
        model: The model, whose gradients were deleted before the forward pass.

    Raises:
        RunError: Parameters have no gradient. The message names them.
    """
    missing = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.grad is None
    ]
    if missing:
        raise RunError(
            f"{len(missing)} parameters of the model have no gradient: {shorten_list(missing)}. "
            f"{_ADVICE}."
        )


@contextmanager
def gradient_exchange(network: DistributedDataParallel, *, is_last: bool) -> Iterator[None]:
    """Let DDP exchange the gradients only in the last micro-batch of an iteration.

    Convert DDP's error about parameters that the last micro-batch did not use to RunError.
    """
    try:
        with nullcontext() if is_last else network.no_sync():
            yield
    except RuntimeError as error:
        if "Expected to have finished reduction in the prior iteration" not in str(error):
            raise
        raise RunError(
            "The last micro-batch of an iteration did not use all parameters of the model. "
            f"{_ADVICE}."
        ) from error
