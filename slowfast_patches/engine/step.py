"""One step of gradient descent, as training takes it and as benchmarks time it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from fvcore.common.config import CfgNode
from torch import Tensor, nn

from multigrid import Batch, Step, set_group_size
from slowfast_patches.models.dropout import set_clips
from slowfast_patches.models.inputs import InputTransform
from slowfast_patches.models.solver import Precision, clip_gradients, set_learning_rate

__all__ = ["Outcome", "train_step"]


class Outcome(NamedTuple):
    """What a step gives to report: the loss, the scores (N, C) and the labels, on the device."""

    loss: Tensor
    scores: Tensor
    labels: Tensor


def train_step(
    cfg: CfgNode,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: Step,
    batch: Batch,
    *,
    clips: Sequence[int] | None = None,
    transform: InputTransform,
    precision: Precision,
    loss_function: nn.Module,
) -> Outcome:
    """Train `network` on this process's clips of one iteration, at its learning rate and BN size.

    `clips` are the numbers of the batch's clips in the stream, which dropout is keyed by; without
    them, as for clips that are made up, its masks are drawn from torch's generator.

    On a GPU the work is queued when this returns, not done.
    """
    network.train()
    set_group_size(network, step.bn_size)
    set_clips(network, clips)
    set_learning_rate(optimizer, step.lr)
    inputs = transform(batch["clips"], batch["flips"])
    labels = batch["labels"].to(transform.device, non_blocking=True)
    with precision.autocast():
        scores = network(inputs)
        loss = loss_function(scores, labels)
    optimizer.zero_grad(set_to_none=True)
    precision.backward(loss, optimizer)
    clip_gradients(cfg, network)
    precision.step(optimizer)
    return Outcome(loss.detach(), scores.detach(), labels)
