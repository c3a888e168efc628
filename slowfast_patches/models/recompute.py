"""Activation checkpointing: recompute activations in the backward pass to save memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def checkpoint_blocks(model: nn.Module) -> nn.Module:
    """Checkpoint every residual block of a PySlowFast model, or every layer of a transformer.

    In training, a block stores only its input. The backward pass computes the other activations of
    the block a second time (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).
    This takes about a third more computation and much less memory, and gives the same results. BN
    updates its running statistics only in the first computation. Parameters keep their names.

    Returns:
        The model, which is changed in place.
    """
    for name in ("activation_checkpointing_enable", "gradient_checkpointing_enable"):
        if hasattr(model, name):  # the new and the old name of the method in transformers
            getattr(model, name)({"use_reentrant": False})
            return model
    from slowfast.models.resnet_helper import ResBlock

    for block in model.modules():
        if isinstance(block, ResBlock) and "forward" not in vars(block):  # not yet checkpointed
            block.forward = partial(_forward, block, block.forward)
    return model


def _forward(block: nn.Module, forward: Any, x: Tensor) -> Tensor:
    if not (block.training and torch.is_grad_enabled()):
        return cast(Tensor, forward(x))
    result = checkpoint(
        forward,
        x,
        use_reentrant=False,
        preserve_rng_state=False,  # a residual block draws no random numbers
        context_fn=lambda: (nullcontext(), _untracked(block)),
    )
    return cast(Tensor, result)


@contextmanager
def _untracked(block: nn.Module) -> Iterator[None]:
    """Keep the running statistics of a block unchanged while the context is active.

    The BN layers of the block update copies of the running statistics instead. The updates cannot
    be switched off, because both computations of a block must save the same number of tensors.
    """
    norms = [module for module in block.modules() if isinstance(module, nn.BatchNorm3d)]
    kept = [dict(norm.named_buffers()) for norm in norms]
    for norm, buffers in zip(norms, kept, strict=True):
        norm._buffers.update({name: buffer.clone() for name, buffer in buffers.items()})
    try:
        yield
    finally:
        for norm, buffers in zip(norms, kept, strict=True):
            norm._buffers.update(buffers)
