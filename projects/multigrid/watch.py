"""Checks of a training loop by hooks on its model and optimizer."""

from __future__ import annotations

import math
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from multigrid.contract import modules_in_eval

__all__ = ["LoopWatch", "WeakHook", "unwrap"]

_WINDOW, _MOST_UNSTEPPED = 8, 4
"""Report a loop if 4 of the last 8 iterations had no optimizer step."""

_ACCUMULATES = (
    f"{_MOST_UNSTEPPED} of the last {_WINDOW} iterations computed gradients without a call of "
    "optimizer.step(). The learning rate of an iteration is for one mini-batch, so call "
    "optimizer.step() in each iteration. To accumulate gradients, use "
    "Training(..., accumulation_steps=k) and training.micro_batches(batch)"
)
_IS_UNUSED = (
    f"the first {_MOST_UNSTEPPED} iterations did not call step() of the optimizer that Training "
    "has. Give Training the model and the optimizer that the loop trains, and call "
    "optimizer.step() in each iteration. To accumulate gradients, use "
    "Training(..., accumulation_steps=k) and training.micro_batches(batch)"
)

_handles: WeakKeyDictionary[nn.Module | Optimizer, list[RemovableHandle]] = WeakKeyDictionary()
"""Hooks of the latest `LoopWatch` of each model and optimizer."""


class LoopWatch:
    """Check that a loop calls `begin`, the forward and `optimizer.step()` in turn.

    A model and an optimizer have only the hooks of their latest watch. The hooks stay registered
    after the training, when they do nothing. Removing a hook within a hook would change the
    dictionary that torch iterates over.

    Attributes:
        undivided: Number of micro-batches into which the loop has yet to divide the mini-batch, or
            0 if there is nothing to divide.
    """

    undivided = 0

    def __init__(self) -> None:
        self._model: nn.Module | None = None
        self._optimizer: Optimizer | None = None
        self._has_begun = False
        self._has_run = False
        self._has_stepped = False
        self._has_ended = False
        self._unstepped = deque[bool](maxlen=_WINDOW)
        self._rates = list[float]()
        self._said = set[str]()

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Register hooks on a model and an optimizer, unless this watch has them already."""
        optimizer = unwrap(optimizer)
        if self._model is model and self._optimizer is optimizer:
            return
        self._model = model
        self._optimizer = optimizer
        for part in (model, optimizer):
            for handle in _handles.pop(part, ()):
                handle.remove()
        _handles[model] = [model.register_forward_pre_hook(WeakHook(self._check_forward))]
        _handles[optimizer] = [
            optimizer.register_step_pre_hook(WeakHook(self._check_step)),
            optimizer.register_step_post_hook(WeakHook(self._end_step)),
        ]

    def begin(self, rates: Sequence[float], *, is_last: bool, undivided: int) -> None:
        """Check the previous iteration, and begin the next one before its rates are set.

        Args:
            rates: Learning rates of the next iteration.
            is_last: Whether this is the last iteration.
            undivided: See the attribute.

        Raises:
            ValueError: The loop accumulates gradients over several iterations.
        """
        self._check_steps()
        self._check_rates(rates)
        self._rates = list(rates)
        self._has_begun = True
        self._has_ended = is_last
        self.undivided = undivided

    def _check_forward(self, model: nn.Module, *_: Any) -> None:
        """Raise ValueError if a training forward runs without a preceding `begin`.

        Otherwise, the forward would use the BN group size of the previous iteration. Several
        forwards between `begin` and `optimizer.step()` are allowed.
        """
        if not (model.training and torch.is_grad_enabled()):
            return
        self._has_run = True
        if not (self._has_begun or self._has_ended):
            raise ValueError(
                "the model is in training mode, but no iteration has begun. Call "
                "training.begin(batch) for each mini-batch before the forward. For evaluation, "
                "call model.eval() or use torch.no_grad()"
            )

    def _check_step(self, *_: Any) -> None:
        """Raise ValueError if `optimizer.step()` is called without a preceding `begin`.

        Otherwise, the step would use the learning rate of the previous iteration.
        """
        if not self._has_begun:
            if self._has_ended:
                return
            raise ValueError(
                "optimizer.step() was called, but no iteration has begun. Call "
                "training.begin(batch) for each mini-batch before the forward"
            )
        if self.undivided:
            raise ValueError(
                f"accumulation_steps is {self.undivided}, but the mini-batch was not divided. "
                "Iterate over training.micro_batches(batch) before optimizer.step(), or leave "
                "accumulation_steps out"
            )
        self._check_rates(self._rates)
        # The root alone is quick to check, and shows that train() is missing after an evaluation.
        if not self._has_stepped or (self._model is not None and not self._model.training):
            self._check_mode()

    def _end_step(self, *_: Any) -> None:
        self._has_begun = False
        self._has_stepped = True

    def _check_steps(self) -> None:
        """Check that the iterations before this one had a step.

        torch.amp.GradScaler skips a step if gradients are not finite. Such steps are not missing.

        Raises:
            ValueError: Some iterations had a step, but many had none.
        """
        assert self._model is not None
        is_unused = not (self._has_run or self._has_stepped)
        self._unstepped.append(self._has_begun and (is_unused or _has_gradients(self._model)))
        if sum(self._unstepped) >= _MOST_UNSTEPPED:
            if self._has_stepped:
                raise ValueError(_ACCUMULATES)
            self._warn_once("steps", _IS_UNUSED)  # a compiled step calls no hooks

    def _check_rates(self, rates: Sequence[float]) -> None:
        """Warn if the optimizer has other rates than those of `begin`, and than `rates`."""
        assert self._optimizer is not None
        found = [float(group["lr"]) for group in self._optimizer.param_groups]
        for rate, *allowed in zip(found, self._rates, rates, strict=False):
            if rate not in allowed:
                self._warn_once(
                    "rates",
                    f"the learning rate is {rate:g}, but training.begin set {allowed[0]:g}. begin "
                    "sets it in every iteration, so remove the scheduler or other code that sets "
                    'it. To scale the rate of a parameter group, set its "lr_scale"',
                )

    def _check_mode(self) -> None:
        """Warn if trained modules are in evaluation mode."""
        assert self._model is not None
        assert self._optimizer is not None
        if names := modules_in_eval(self._model, self._optimizer):
            self._warn_once(
                "mode",
                f"{len(names)} trained modules are in evaluation mode, such as {names[0]}. Their "
                "BN statistics and dropout are those of evaluation. Call model.train() before the "
                "loop and after each evaluation. Freeze a part that is not to be trained with "
                "requires_grad_(False)",
            )

    def _warn_once(self, kind: str, text: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            warnings.warn(text, stacklevel=4)


def unwrap(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer in the wrapper of a framework, such as accelerate's."""
    inner = getattr(optimizer, "optimizer", None)
    return unwrap(inner) if isinstance(inner, Optimizer) else optimizer


def _has_gradients(model: nn.Module) -> bool:
    """Return whether a model has gradients that are finite and not all zero."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return 0 < sum(float(gradient.norm()) for gradient in gradients) < math.inf


class WeakHook:
    """Module or optimizer hook that calls a method through a weak reference.

    The hook does nothing after the object of the method has been deleted. A copied, pickled or
    compiled model does not call the method.
    """

    def __init__(self, method: Callable[..., None] | None = None) -> None:
        self._method = weakref.WeakMethod(method) if method is not None else None

    def __call__(self, *arguments: Any) -> None:
        if torch.compiler.is_compiling() or self._method is None:
            return
        method = self._method()
        if method is not None:
            method(*arguments)

    def __reduce__(self) -> tuple[type[WeakHook], tuple[()]]:
        return WeakHook, ()
