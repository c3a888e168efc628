"""Optimizer, loss and numerical precision of a recipe."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.models.transformer import parameter_depths

__all__ = [
    "Precision",
    "build_optimizer",
    "clip_gradients",
    "half_type",
    "is_mixed",
    "load_optimizer",
    "loss_function",
]

logger = logging.getLogger(__name__)

_WAYS = ("fused", "foreach")
"""Options of torch's optimizers that change how fast they update, not to what."""


def build_optimizer(
    recipe: Recipe, model: nn.Module, *, fused: bool = False
) -> torch.optim.Optimizer:
    """SGD or Adam as the host has them, AdamW (Loshchilov and Hutter, 2019) or LARS.

    Groups of parameters are the host's: those with "bn" in their names have BN.WEIGHT_DECAY, the
    others SOLVER.WEIGHT_DECAY. SOLVER.ZERO_WD_1D_PARAM takes the decay from biases too, and from a
    transformer's positions and tokens, (1, n, C). With SOLVER.LAYER_DECAY each layer has groups of
    its own, whose "lr_scale" `multigrid.prepare_step` multiplies the rate by. Frozen ones are
    in none. `fused` is for where
    SOLVER.FUSED leaves it open.
    """
    solver = recipe.solver
    decays = (recipe.bn.weight_decay, solver.weight_decay, 0.0)
    by_depth = solver.layer_decay < 1 and recipe.model.family.is_transformer
    depths = parameter_depths(model) if by_depth else dict.fromkeys(model.parameters(), 0)
    members = defaultdict[tuple[int, int], list[nn.Parameter]](list)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:  # TRAIN.FREEZE
            continue
        flat = solver.zero_wd_1d_param and parameter.ndim in (0, 1, 3)
        kind = 0 if "bn" in name else 2 if flat else 1
        members[kind, depths[parameter]].append(parameter)
    last = max(depths.values())
    groups = [
        {
            "params": members[kind, depth],
            "weight_decay": decays[kind],
            "lr_scale": solver.layer_decay ** (last - depth),
        }
        for kind, depth in sorted(members)
    ]
    plain: dict[str, Any] = {
        "momentum": solver.momentum,
        "dampening": solver.dampening,
        "nesterov": solver.nesterov,
    }
    fast = {"fused": True} if solver.fused or fused else {}
    if solver.optimizing_method == "sgd":
        return torch.optim.SGD(groups, lr=solver.base_lr, **plain, **fast)
    kind_of = torch.optim.AdamW if solver.optimizing_method == "adamw" else torch.optim.Adam
    return kind_of(groups, lr=solver.base_lr, betas=(0.9, 0.999), **fast)


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load an optimizer's state, but keep the ways to update that it was built with."""
    # Before loading: torch reads from the groups where the state has to be.
    groups = [
        saved | {way: built[way] for way in _WAYS if way in built}
        for saved, built in zip(state["param_groups"], optimizer.param_groups, strict=True)
    ]
    optimizer.load_state_dict(state | {"param_groups": groups})
    # In the memory format of the weights; the checkpoint may be of another.
    for weight, moments in optimizer.state.items():
        for name, value in moments.items():
            if isinstance(value, Tensor) and value.shape == weight.shape:
                moments[name] = torch.empty_like(weight, dtype=value.dtype).copy_(value)


def loss_function(recipe: Recipe, label_counts: Sequence[int] | None = None) -> nn.Module:
    """The loss of MODEL.LOSS_FUNC of logits, averaged over the mini-batch.

    "cross_entropy" takes class numbers (N,) or shares of the classes (N, C) and smooths them by
    MODEL.LABEL_SMOOTHING; "bce_logit" and, of boxes, "bce" take multi-hot labels (N, C), float, and
    are averaged over the classes too. `label_counts`, the training videos of each class, is for
    SOLVER.CLASS_WEIGHTS, which are left out without it.
    """
    if recipe.solver.class_weights and label_counts is not None:
        several = recipe.multi_label
        weights = _class_weights(recipe.solver.class_weights, label_counts, several)
        return _WeightedLoss(weights, recipe.model.label_smoothing, several)
    if recipe.model.loss_func in ("bce_logit", "bce"):
        return nn.BCEWithLogitsLoss()
    return nn.CrossEntropyLoss(label_smoothing=recipe.model.label_smoothing)


class _WeightedLoss(nn.Module):
    """Each clip's loss times the weight of its label, or of labels in proportion to their shares;
    of several labels, each class's loss times its weight.

    The mean is over clips. torch's own `weight` divides by the weights of those at hand: clips
    would count differently by the mini-batch, the part and the process that they are in.
    """

    weights: Tensor

    def __init__(self, weights: Tensor, smoothing: float, several: bool) -> None:
        super().__init__()
        self.register_buffer("weights", weights)
        self._smoothing = smoothing
        self._several = several

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        if self._several:
            return F.binary_cross_entropy_with_logits(scores, labels, self.weights)
        losses = F.cross_entropy(scores, labels, reduction="none", label_smoothing=self._smoothing)
        if labels.ndim == 1:
            return (losses * self.weights[labels]).mean()
        return (losses * (labels * self.weights).sum(1)).mean()


def _class_weights(given: Sequence[float] | str, counts: Sequence[int], several: bool) -> Tensor:
    """SOLVER.CLASS_WEIGHTS over their mean. A class without a video has the balanced weight of one
    with a single video."""
    videos = torch.tensor(counts, dtype=torch.float64)
    balanced = given == "balanced"
    weights = 1 / videos.clamp(min=1) if balanced else torch.tensor(given, dtype=torch.float64)
    mean = weights.mean() if several else (weights * videos).sum() / videos.sum()
    weights /= mean
    if torch.allclose(weights, torch.ones_like(weights)):
        logger.warning("SOLVER.CLASS_WEIGHTS %s has no effect: all weights are the same", given)
    low = int(weights.argmin())
    high = int(weights.argmax())
    logger.info(
        "class weights from %.3g (class %d, %d videos) to %.3g (class %d, %d videos)",
        *(weights[low], low, counts[low], weights[high], high, counts[high]),
    )
    return weights.float()


def clip_gradients(recipe: Recipe, model: nn.Module) -> None:
    """Clip by value or by norm where the recipe asks; unscaled gradients are expected."""
    if recipe.solver.clip_grad_val:
        nn.utils.clip_grad_value_(model.parameters(), recipe.solver.clip_grad_val)
    elif recipe.solver.clip_grad_l2norm:
        nn.utils.clip_grad_norm_(model.parameters(), recipe.solver.clip_grad_l2norm)


def is_mixed(recipe: Recipe) -> bool:
    """Whether a recipe computes in mixed precision; ValueError while that is not decided."""
    mixed = recipe.train.mixed_precision
    if not isinstance(mixed, bool):
        raise ValueError(
            f"TRAIN.MIXED_PRECISION is {mixed} here, and not decided; write True or False"
        )
    return mixed


def half_type(device: torch.device) -> torch.dtype:
    """What mixed precision computes in: bfloat16 where the device has it, else float16.

    Older GPUs emulate bfloat16, at a fraction of their speed: that does not count.
    """
    if device.type != "cuda":
        return torch.bfloat16
    with torch.cuda.device(device):
        has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if has_bfloat16 else torch.float16


class Precision:
    """fp32, or mixed precision: bf16 where the device has it, else fp16 with a loss scaler."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self._device = device
        self._enabled = is_mixed(recipe)
        self._dtype = half_type(device)
        scaled = self._enabled and self._dtype == torch.float16
        self._scaler = torch.amp.GradScaler(device.type, enabled=scaled)

    @property
    def scales(self) -> bool:
        """Whether the loss is scaled, and updates depend on what became of the gradients."""
        return self._scaler.is_enabled()

    def autocast(self) -> AbstractContextManager[Any]:
        """The context in which the model and its loss are computed."""
        return torch.autocast(self._device.type, self._dtype, enabled=self._enabled)

    def backward(self, loss: Tensor) -> None:
        """Gradients of the loss, multiplied by the scaler's factor."""
        torch.autograd.backward(self._scaler.scale(loss))

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by it."""
        self._scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer step; left out by the scaler where a half overflowed."""
        self._scaler.step(optimizer)
        self._scaler.update()

    def state_dict(self) -> dict[str, Any]:
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self._scaler.load_state_dict(state)
