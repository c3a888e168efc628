"""Checks of a training loop by hooks on its model and optimizer."""

from __future__ import annotations

import math
import warnings
from collections import deque
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from multigrid.batchnorm import GroupedBatchNorm3d
from multigrid.errors import MultigridError

_WINDOW, _MOST_UNSTEPPED = 8, 4
"""Report a loop if 4 of the last 8 iterations had no optimizer step."""

_ADVICE = (
    "Give Training the model and the optimizer that the loop trains, and call optimizer.step() in "
    "each iteration, because its learning rate is for one mini-batch. To accumulate gradients, use "
    "Training(..., accumulation_steps=k) and training.micro_batches(batch)"
)

_watched: WeakKeyDictionary[nn.Module | Optimizer, ReferenceType[LoopWatch]] = WeakKeyDictionary()
"""Latest watch of each model and optimizer. A copy of a model or an optimizer has none."""


class LoopWatch:
    """Check that a loop calls `begin`, the forward and `optimizer.step()` in turn.

    Attributes:
        undivided: Number of micro-batches into which the loop must still divide the mini-batch. 0
            if the mini-batch has been divided, or need not be.
    """

    undivided = 0

    def __init__(self) -> None:
        self._has_begun = False
        self._has_run = False
        self._has_stepped = False
        self._has_ended = False
        self._unstepped = deque[bool](maxlen=_WINDOW)
        self._rates = list[float]()
        self._said = set[str]()

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Watch a model and an optimizer. Replace any earlier `LoopWatch` of them."""
        self._model = model
        self._optimizer = optimizer = unwrap(optimizer)
        if model not in _watched:
            model.register_forward_pre_hook(_before_forward)
        if optimizer not in _watched:
            optimizer.register_step_pre_hook(_before_step)
            optimizer.register_step_post_hook(_after_step)
        _watched[model] = _watched[optimizer] = ref(self)

    def begin(self, rates: list[float], *, is_last: bool, undivided: int) -> None:
        """Check the previous iteration, and begin the next one before its rates are set.

        torch.amp.GradScaler skips the optimizer step if gradients are not finite. This is not a
        mistake in the loop.

        Args:
            rates: Learning rates of the next iteration.
            is_last: Whether this is the last iteration.
            undivided: New value of the attribute.

        Raises:
            ValueError: The loop accumulates gradients over several iterations.
        """
        is_unused = not (self._has_run or self._has_stepped)
        self._unstepped.append(self._has_begun and (is_unused or _has_gradients(self._model)))
        if sum(self._unstepped) >= _MOST_UNSTEPPED:
            if self._has_stepped:
                raise MultigridError(
                    f"{_MOST_UNSTEPPED} of the last {_WINDOW} iterations computed gradients "
                    f"without a call of optimizer.step(). {_ADVICE}"
                )
            self._warn_once(  # a compiled step calls no hooks
                f"the first {_MOST_UNSTEPPED} iterations did not call step() of the optimizer that "
                f"Training has. {_ADVICE}"
            )
        self._check_rates(rates)
        self._rates = rates
        self._has_begun = True
        self._has_ended = is_last
        self.undivided = undivided

    def before_forward(self) -> None:
        """Raise ValueError if a training forward runs without a preceding `begin`.

        Otherwise, the forward would use the BN group size of the previous iteration. Several
        forwards between `begin` and `optimizer.step()` are allowed.
        """
        if self._model.training and torch.is_grad_enabled():
            self._has_run = True
            self._check_begun("model(...)")

    def before_step(self) -> None:
        """Raise ValueError if `optimizer.step()` is called without a preceding `begin`.

        Otherwise, the step would use the learning rate of the previous iteration.
        """
        self._check_begun("optimizer.step()")
        if not self._has_begun:
            return
        if self.undivided:
            raise MultigridError(
                f"accumulation_steps is {self.undivided}, but the mini-batch was not divided. "
                "Iterate over training.micro_batches(batch) before optimizer.step(), or leave "
                "accumulation_steps out"
            )
        self._check_rates(self._rates)
        # The root alone is quick to check, and shows that train() is missing after an evaluation.
        if self._has_stepped and self._model.training:
            return
        if names := _trained_in_eval(self._model, self._optimizer):
            self._warn_once(
                f"{len(names)} trained modules are in evaluation mode, such as {names[0]}. Their "
                "BN statistics and dropout are those of evaluation. Call model.train() before the "
                "loop and after each evaluation. Freeze a part that is not to be trained with "
                "requires_grad_(False)"
            )

    def after_step(self) -> None:
        """End the iteration."""
        self._has_begun = False
        self._has_stepped = True

    def _check_begun(self, call: str) -> None:
        if not (self._has_begun or self._has_ended):
            raise MultigridError(
                f"{call} was called in training mode, but no iteration has begun. Call "
                "training.begin(batch) for each mini-batch before the forward. For evaluation, "
                "call model.eval() or use torch.no_grad()"
            )

    def _check_rates(self, rates: list[float]) -> None:
        """Warn if the learning rates are neither those of the last `begin` nor `rates`."""
        known = len(self._rates)  # Groups may have been added since.
        found = [float(group["lr"]) for group in self._optimizer.param_groups[:known]]
        if found not in (self._rates, rates[:known]):
            self._warn_once(
                "an optimizer has other learning rates than training.begin set. begin sets them in "
                "every iteration, so remove the scheduler or other code that sets them. To scale "
                'the rate of a parameter group, set its "lr_scale"'
            )

    def _warn_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            warnings.warn(text, stacklevel=4)


def _watch_of(part: nn.Module | Optimizer) -> LoopWatch | None:
    """Return the watch of a model or an optimizer, unless torch.compile traces the call."""
    found = None if torch.compiler.is_compiling() else _watched.get(part)
    return None if found is None else found()


# Hooks are functions of the module, so models and optimizers with hooks can be pickled.


def _before_forward(model: nn.Module, *_: Any) -> None:
    if watch := _watch_of(model):
        watch.before_forward()


def _before_step(optimizer: Optimizer, *_: Any) -> None:
    if watch := _watch_of(optimizer):
        watch.before_step()


def _after_step(optimizer: Optimizer, *_: Any) -> None:
    if watch := _watch_of(optimizer):
        watch.after_step()


def unwrap(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer in the wrapper of a framework, such as accelerate's."""
    inner = getattr(optimizer, "optimizer", None)
    return unwrap(inner) if isinstance(inner, Optimizer) else optimizer


def _has_gradients(model: nn.Module) -> bool:
    """Return whether a model has gradients that are finite and not all zero."""
    norms = [float(p.grad.norm()) for p in model.parameters() if p.grad is not None]
    return 0 < sum(norms) < math.inf


def _trained_in_eval(model: nn.Module, optimizer: Optimizer) -> list[str]:
    """Return the names of the modules in evaluation mode whose parameters are trained.

    Leave out BN layers, because they are often set to evaluation mode on purpose (frozen BN).
    """
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    trained = {p for p in parameters if p.requires_grad}
    return [
        name or type(module).__name__
        for name, module in model.named_modules()
        if not module.training and not isinstance(module, _BatchNorm)
        if not trained.isdisjoint(module.parameters(recurse=False))
    ]


def check_converted(model: nn.Module) -> None:
    """Raise ValueError if a model has BN layers and none of them is a GroupedBatchNorm3d."""
    norms = [norm for norm in model.modules() if isinstance(norm, _BatchNorm)]
    if norms and not any(isinstance(norm, GroupedBatchNorm3d) for norm in norms):
        raise MultigridError(
            f"the model has {len(norms)} {type(norms[0]).__name__} layers, which cannot compute "
            "statistics over groups of clips. Call model = multigrid.convert_batchnorm(model) "
            "before you create the optimizer. To keep the layers and normalise the clips of each "
            "process together, use make_schedule(..., bn_size=None)"
        )
