"""Optimizer and numerical precision of a recipe: autocast, its weights, and gradient scaling."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.utils.distributed import is_alone

_SPEED_OPTIONS = ("fused", "foreach")
"""Options of torch's optimizers that affect the speed of an update but not the new weights."""

_CASTING = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layers whose weights autocast casts."""

_WEIGHTS_AT_ONCE = 16
"""Number of weights whose gradients become known together if there are several processes.

`DistributedDataParallel` can then exchange them while gradients of earlier layers are computed.
"""


def build_optimizer(
    recipe: Recipe, model: nn.Module, *, fused: bool = False
) -> torch.optim.Optimizer:
    """Build the optimizer of a recipe: SGD or Adam as in PySlowFast, or AdamW.

    The weight decay is BN.WEIGHT_DECAY for parameters with "bn" in their names, as in PySlowFast,
    and SOLVER.WEIGHT_DECAY for other parameters. With SOLVER.ZERO_WD_1D_PARAM, the weight decay is
    0 for one-dimensional parameters such as biases, and for the other parameters that
    `ModelSpec.undecayed_axes` selects.

    With SOLVER.LAYER_DECAY, each layer has separate parameter groups.
    `multigrid.prepare_step` multiplies the learning rate of a group by its "lr_scale". Frozen
    parameters are in no group.

    Args:
        recipe: The recipe.
        model: The model to optimize.
        fused: Use the fused implementation even if SOLVER.FUSED is False.
    """
    solver = recipe.solver
    depths: dict[nn.Parameter, int] = {}
    spec = recipe.model.spec
    if solver.layer_decay < 1 and spec.depths is not None:
        depths = spec.depths(model)
    last = max(depths.values(), default=0)
    members = defaultdict[tuple[float, float], list[nn.Parameter]](list)
    for name, parameter in model.named_parameters():
        flat = solver.zero_wd_1d_param and parameter.ndim in spec.undecayed_axes
        decay = recipe.bn.weight_decay if "bn" in name else 0.0 if flat else solver.weight_decay
        scale = solver.layer_decay ** (last - depths.get(parameter, last))
        if parameter.requires_grad:
            members[decay, scale].append(parameter)
    groups = [
        {"params": parameters, "weight_decay": decay, "lr_scale": scale}
        for (decay, scale), parameters in members.items()
    ]
    use_fused = solver.fused or fused or None  # None lets torch choose another implementation
    if solver.optimizing_method == "sgd":
        return torch.optim.SGD(
            groups,
            solver.base_lr,
            solver.momentum,
            solver.dampening,
            nesterov=solver.nesterov,
            fused=use_fused,
        )
    kind = torch.optim.AdamW if solver.optimizing_method == "adamw" else torch.optim.Adam
    return kind(groups, solver.base_lr, fused=use_fused)


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a state dict into an optimizer, but keep the optimizer's own `fused` and `foreach`."""
    # Set the options before loading, because torch chooses the device of the state by them.
    groups = [
        saved | {option: built[option] for option in _SPEED_OPTIONS if option in built}
        for saved, built in zip(state["param_groups"], optimizer.param_groups, strict=True)
    ]
    optimizer.load_state_dict(state | {"param_groups": groups})
    # Convert moments to the memory format of the weights. The checkpoint may have another format.
    for weight, moments in optimizer.state.items():
        for name, value in moments.items():
            if isinstance(value, Tensor) and value.shape == weight.shape:
                moments[name] = torch.empty_like(weight, dtype=value.dtype).copy_(value)


def clip_gradients(recipe: Recipe, model: nn.Module) -> None:
    """Clip gradients in place by SOLVER.CLIP_GRAD_VAL or SOLVER.CLIP_GRAD_L2NORM.

    If the loss was scaled, unscale the gradients first.
    """
    if recipe.solver.clip_grad_val:
        nn.utils.clip_grad_value_(model.parameters(), recipe.solver.clip_grad_val)
    elif recipe.solver.clip_grad_l2norm:
        nn.utils.clip_grad_norm_(model.parameters(), recipe.solver.clip_grad_l2norm)


def is_mixed(recipe: Recipe) -> bool:
    """Return whether a resolved recipe uses mixed precision."""
    mixed = recipe.train.mixed_precision
    assert isinstance(mixed, bool), "launch.resolve replaces auto"
    return mixed


def half_type(device: torch.device) -> torch.dtype:
    """Return the data type for mixed precision on a device.

    The type is bfloat16 on a CPU and on a GPU with bfloat16 hardware. On older GPUs, which can only
    emulate bfloat16 slowly, the type is float16.
    """
    if device.type != "cuda":
        return torch.bfloat16
    with torch.cuda.device(device):
        has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if has_bfloat16 else torch.float16


def autocast(recipe: Recipe, device: torch.device) -> AbstractContextManager[Any]:
    """Return the autocast context in which to compute the forward pass and the loss."""
    return torch.autocast(device.type, half_type(device), enabled=is_mixed(recipe))


def grad_scaler(recipe: Recipe, device: torch.device) -> torch.amp.GradScaler:
    """Return the gradient scaler of a recipe. It is enabled for mixed precision with float16."""
    scales = is_mixed(recipe) and half_type(device) == torch.float16
    return torch.amp.GradScaler(device.type, enabled=scales)


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
            step = max(1, len(some)) if is_alone() else _WEIGHTS_AT_ONCE
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
