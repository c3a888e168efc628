"""Checks of a training loop by hooks on its model, its optimizers and its parameters."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, finalize, ref

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from multigrid.agreement import broadcasts_buffers
from multigrid.batchnorm import GroupedBatchNorm3d
from multigrid.errors import MultigridError
from multigrid.user_warning import warn_user

_WINDOW, _MOST_SUMMED = 8, 4
"""Report a loop if 4 of the last 8 iterations added their gradients to earlier ones."""

_MOST_UNSTEPPED = 4
"""Report an optimizer if none of the first 4 iterations called its `step`."""

_ACCUMULATE = (
    "The learning rate of an iteration is for one mini-batch. To accumulate gradients, use "
    "Training(..., accumulation_steps=k) and training.micro_batches(batch). To skip an update, "
    "call optimizer.zero_grad()"
)
_NAMES = 5
"""Number of names of parameters in a message."""

_watched: WeakKeyDictionary[nn.Module | Optimizer, ReferenceType[LoopWatch]] = WeakKeyDictionary()
"""Latest watch of each model and optimizer. A copy of a model or an optimizer has none."""


class LoopWatch:
    """Check that a loop calls `begin`, the forward and `optimizer.step()` in turn.

    The watch also knows whether the last iteration is over (`is_over`), so that a saved state
    counts only iterations that were trained.

    Attributes:
        undivided: Number of micro-batches into which the loop must still divide the mini-batch. 0
            if the mini-batch has been divided, or need not be.
        broadcasts_buffers: Whether the last forward copied the buffers of rank 0 to all processes.
    """

    undivided = 0
    broadcasts_buffers = False
    _is_open = False  # begun, and neither stepped nor skipped
    _is_ready = False  # begun, and a forward or a step may follow
    _was_skipped = False
    _has_backward = False
    _is_summed = False
    _has_ended = False
    _was_untrained = False  # the iteration before
    _missed = 0
    _version = 0

    def __init__(self) -> None:
        self._stepped = set[Optimizer]()
        self._ever_stepped = set[Optimizer]()
        self._summed = deque[bool](maxlen=_WINDOW)
        self._rates = dict[Optimizer, list[float]]()
        self._said = set[str]()
        self._optimizers: tuple[Optimizer, ...] = ()
        self._hooked = set[int]()
        self._handles = list[RemovableHandle]()
        finalize(self, _remove, self._handles).atexit = False

    def attach(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        """Watch a model, optimizers and their parameters. Replace any earlier `LoopWatch`."""
        self._model = model
        self._optimizers = tuple(optimizers)
        if model not in _watched:
            model.register_forward_pre_hook(_before_forward)
        _watched[model] = ref(self)
        for optimizer in optimizers:
            if optimizer not in _watched:
                optimizer.register_step_pre_hook(_before_step)
                optimizer.register_step_post_hook(_after_step)
            _watched[optimizer] = ref(self)
        hook = partial(_before_gradient, ref(self))
        for parameter in _parameters(optimizers):
            # A parameter may be unfrozen, or added to an optimizer, during the training.
            if parameter.requires_grad and id(parameter) not in self._hooked:
                self._hooked.add(id(parameter))
                handle = parameter.register_hook(partial(hook, ref(parameter)))  # type: ignore[no-untyped-call]
                self._handles.append(handle)

    def begin(self, rates: Sequence[list[float]], *, is_last: bool, undivided: int) -> None:
        """Check the previous iteration, and begin the next one before its rates are set.

        Args:
            rates: Learning rates of the next iteration, for each optimizer.
            is_last: Whether this is the last iteration.
            undivided: New value of the attribute.

        Raises:
            ValueError: The loop accumulates gradients over several iterations.
        """
        self._summed.append(self._is_summed)
        if sum(self._summed) >= _MOST_SUMMED:
            raise MultigridError(
                f"{_MOST_SUMMED} of the last {_WINDOW} iterations added their gradients to those "
                f"of an earlier iteration, without optimizer.step() in between. {_ACCUMULATE}"
            )
        self._check_stepped()
        new = dict(zip(self._optimizers, rates, strict=True))
        self._check_rates(new)
        self._rates = new
        self._stepped.clear()
        self._is_open = self._is_ready = True
        self._has_backward = self._is_summed = self._was_skipped = False
        self._has_ended = is_last
        self._version = self._weights_version()
        self.undivided = undivided

    def known_groups(self, optimizer: Optimizer) -> int:
        """Return the number of parameter groups that an optimizer had in the last `begin`."""
        return len(self._rates.get(optimizer, optimizer.param_groups))

    def skip(self) -> None:
        """End the iteration without a step, if it is still open."""
        self._was_skipped = self._is_open
        self._is_open = self._is_ready = False

    def is_over(self) -> bool:
        """Return whether the iteration that began last is over.

        It is over if an optimizer has stepped, if the loop said that the step is skipped, or if
        the weights have changed, as by a compiled step, which calls no hooks. It is also over if
        gradients were computed and are no longer there, or are not finite. The loop or a GradScaler
        then skips the step.
        """
        if not self._is_open or self._weights_version() != self._version:
            return True
        return self._is_unapplied()

    def before_forward(self) -> None:
        """Raise ValueError if a training forward runs without a preceding `begin`.

        Otherwise, the forward would use the BN group size of the previous iteration. Several
        forwards between `begin` and `optimizer.step()` are allowed.
        """
        if self._model.training and torch.is_grad_enabled():
            self.broadcasts_buffers = broadcasts_buffers()
            self._check_begun("model(...)", self._is_ready)

    def before_gradient(self, parameter: Tensor) -> None:
        """Note that a gradient has been computed, before it is added to the earlier gradient."""
        if self._is_open and not self._has_backward:
            self._has_backward = True
            self._is_summed = self._was_untrained and _has_gradients([parameter])

    def before_step(self, optimizer: Optimizer) -> None:
        """Raise ValueError if `optimizer.step()` is called without a preceding `begin`.

        Otherwise, the step would use the learning rate of the previous iteration.
        """
        is_open = self._is_ready and optimizer not in self._stepped
        self._check_begun("optimizer.step()", is_open)
        if not is_open:
            return
        if self.undivided:
            raise MultigridError(
                f"accumulation_steps is {self.undivided}, but the mini-batch was not divided. "
                "Iterate over training.micro_batches(batch) before optimizer.step(), or leave "
                "accumulation_steps out"
            )
        self._check_rates(self._rates)
        # Checking only the root module is fast, and detects a missing train() after an evaluation.
        if optimizer in self._ever_stepped and self._model.training:
            return
        if names := _trained_in_eval(self._model, optimizer):
            self._warn_once(
                f"{len(names)} trained modules are in evaluation mode, such as {names[0]}. Their "
                "BN layers and dropout work as in an evaluation. Call model.train() before the "
                "loop and after each evaluation. Freeze a part that is not to be trained with "
                "requires_grad_(False)"
            )

    def after_step(self, optimizer: Optimizer) -> None:
        """Note a step. Once all optimizers have stepped, the next iteration must begin."""
        self._stepped.add(optimizer)
        self._ever_stepped.add(optimizer)
        self._is_open = False
        self._is_ready = len(self._stepped) < len(self._optimizers)

    def _check_begun(self, call: str, has_begun: bool) -> None:
        if not (has_begun or self._has_ended):
            raise MultigridError(
                f"{call} was called in training mode, but no iteration has begun. Call "
                "training.begin(batch) for each mini-batch before the forward. For evaluation, "
                "call model.eval() or use torch.no_grad()"
            )

    def _check_stepped(self) -> None:
        """Warn if no iteration so far has called `step` of an optimizer."""
        if not self._rates:
            return
        has_changed = self._weights_version() != self._version
        self._was_untrained = not (self._stepped or has_changed)
        # A compiled step calls no hooks, but most optimizers then have a state.
        is_compiled = has_changed and any(optimizer.state for optimizer in self._optimizers)
        is_skipped = self._was_skipped or (not has_changed and self._is_unapplied())
        is_missed = not (self._stepped or is_compiled or is_skipped)
        self._missed = self._missed + 1 if is_missed else 0
        if self._missed == _MOST_UNSTEPPED and not self._ever_stepped:
            self._warn_once(
                f"the first {_MOST_UNSTEPPED} iterations did not call step() of the optimizer that "
                "Training has. Give Training the model and the optimizer that the loop trains, and "
                "call optimizer.step() in each iteration. Ignore this if step() is compiled by "
                "torch.compile, and the optimizer's learning rate is a tensor"
            )

    def _is_unapplied(self) -> bool:
        """Return whether gradients were computed that are no longer there, or are not finite."""
        return self._has_backward and not _has_gradients(_parameters(self._optimizers))

    def _check_rates(self, rates: dict[Optimizer, list[float]]) -> None:
        """Warn if the learning rates are neither those of the last `begin` nor `rates`."""
        for optimizer, known in self._rates.items():
            count = len(known)  # Groups may have been added since.
            found = [float(group["lr"]) for group in optimizer.param_groups[:count]]
            allowed = (known, rates.get(optimizer, known)[:count])
            if not any(_are_equal(found, expected) for expected in allowed):
                self._warn_once(
                    "an optimizer has other learning rates than training.begin set. begin sets "
                    "them in every iteration, so remove the scheduler or other code that sets "
                    'them. To scale the rate of a parameter group, set its "lr_scale"'
                )

    def _weights_version(self) -> int:
        """Return a number that changes with each update of the weights."""
        return sum(parameter._version for parameter in _parameters(self._optimizers))

    def _warn_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            warn_user(text)


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
        watch.before_step(optimizer)


def _after_step(optimizer: Optimizer, *_: Any) -> None:
    if watch := _watch_of(optimizer):
        watch.after_step(optimizer)


def _before_gradient(
    watch: ReferenceType[LoopWatch], parameter: ReferenceType[Tensor], _: Tensor
) -> None:
    found, one = watch(), parameter()
    if found is not None and one is not None and not torch.compiler.is_compiling():
        found.before_gradient(one)


def _remove(handles: list[RemovableHandle]) -> None:
    """Remove the hooks of parameters."""
    for handle in handles:
        handle.remove()


def unwrap(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer in the wrapper of a framework, such as accelerate's."""
    inner = getattr(optimizer, "optimizer", None)
    return unwrap(inner) if isinstance(inner, Optimizer) else optimizer


def _parameters(optimizers: Sequence[Optimizer]) -> Iterator[Tensor]:
    """Yield the parameters of optimizers."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]


def _are_equal(rates: list[float], expected: list[float]) -> bool:
    """Return whether learning rates are equal. A rate in a tensor is rounded to float32."""
    is_close = partial(math.isclose, rel_tol=1e-6)
    return len(rates) == len(expected) and all(map(is_close, rates, expected))


def _has_gradients(parameters: Sequence[Tensor] | Iterator[Tensor]) -> bool:
    """Return whether parameters have gradients that are finite and not all zero."""
    norms = [float(p.grad.norm()) for p in parameters if p.grad is not None]
    return 0 < sum(norms) < math.inf


def _trained_in_eval(model: nn.Module, optimizer: Optimizer) -> list[str]:
    """Return the names of the modules in evaluation mode whose parameters are trained.

    Leave out BN layers, because they are often set to evaluation mode on purpose (frozen BN).
    """
    trained = {p for p in _parameters([optimizer]) if p.requires_grad}
    return [
        name or type(module).__name__
        for name, module in model.named_modules()
        if not module.training and not isinstance(module, _BatchNorm)
        if not trained.isdisjoint(module.parameters(recurse=False))
    ]


def untrained(model: nn.Module, optimizers: Sequence[Optimizer]) -> tuple[str, ...]:
    """Return a warning if some parameters that require gradients are in no optimizer.

    Returns:
        A tuple of one message, or an empty tuple.
    """
    trained = set(_parameters(optimizers))
    names = [n for n, p in model.named_parameters() if p.requires_grad and p not in trained]
    if not names:
        return ()
    listed = ", ".join(names[:_NAMES]) + (", ..." if len(names) > _NAMES else "")
    return (
        f"no optimizer of the training has the parameters {listed} ({len(names)} in all). If "
        "another optimizer trains them, give Training all optimizers as a list, so that their "
        "learning rates follow the schedule. Otherwise, freeze them with requires_grad_(False)",
    )


def check_converted(model: nn.Module) -> None:
    """Raise ValueError if a model has BN layers and none of them is a GroupedBatchNorm3d."""
    norms = [norm for norm in model.modules() if isinstance(norm, _BatchNorm)]
    if norms and not any(isinstance(norm, GroupedBatchNorm3d) for norm in norms):
        raise MultigridError(
            f"the model has {len(norms)} {type(norms[0]).__name__} layers, which cannot compute "
            "statistics over groups of clips. Call model = multigrid.convert_batchnorm(model) "
            "before you create the optimizer. To keep the layers and normalise the clips of each "
            "process together, use make_schedule(..., bn_group_size=None)"
        )
