"""Freezing of layers, as selected by TRAIN.FREEZE."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial

from torch import nn

from multigrid import FollowsGrid
from slowfast_patches.utils.errors import UserError
from slowfast_patches.utils.tables import format_list

logger = logging.getLogger(__name__)

_HEAD = ("head.", "classifier.", "fc_norm.", "pooler.")
"""Prefixes of the names of parameters in classification heads."""


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze the parameters that match the patterns of TRAIN.FREEZE.

    Frozen parameters require no gradient. A module whose parameters are all frozen stays in
    evaluation mode even while the model is in training mode, so that BN uses running statistics
    and dropout is off.

    Args:
        model: The model to change.
        patterns: See `frozen_names`. If the list is empty, nothing is frozen.

    Raises:
        ValueError: See `frozen_names`.
    """
    if not patterns:
        return
    names = frozen_names(model, patterns)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in names)
    for module in _frozen_modules(model):
        # Replace the method: torch has no hook for `train`, and a wrapper would rename parameters.
        module.train = partial(_stay_in_evaluation, module)  # type: ignore[method-assign]
    logger.info("TRAIN.FREEZE: %d parameter tensors are frozen.", len(names))


def frozen_names(model: nn.Module, patterns: Sequence[str]) -> Collection[str]:
    """Return the names of the parameters that match the patterns of TRAIN.FREEZE.

    Args:
        model: The model with the parameters.
        patterns: Names of parameters or modules, optionally with the wildcards * and ?. A module
            name matches all parameters of the module. "backbone" matches all parameters outside
            the head.

    Raises:
        ValueError: A pattern matches no parameter, or the patterns match all parameters of the
            head.
    """
    names = dict(model.named_parameters()).keys()
    frozen = set[str]()
    for pattern in patterns:
        if not (matched := {name for name in names if _matches(name, pattern)}):
            parts = format_list([name for name, _ in model.named_children()])
            raise UserError(
                f"TRAIN.FREEZE {pattern} matches no parameter of the model. Set TRAIN.FREEZE to "
                f"backbone, or to names of modules, such as {parts}, or parameters. Names may have "
                "the wildcards * and ?."
            )
        frozen |= matched
    if not any(name.startswith(_HEAD) for name in names - frozen):
        raise UserError(
            f"TRAIN.FREEZE {','.join(patterns)} freezes the whole head, which then cannot learn "
            "the classes. Remove the key, or set TRAIN.FREEZE backbone."
        )
    return frozen


def _matches(name: str, pattern: str) -> bool:
    if pattern == "backbone":
        return not name.startswith(_HEAD)
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def _frozen_modules(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost modules that have parameters and whose parameters are all frozen."""
    for child in module.children():
        requires_grad = [parameter.requires_grad for parameter in child.parameters()]
        if requires_grad and not any(requires_grad):
            yield child
        else:
            yield from _frozen_modules(child)


def _stay_in_evaluation(module: nn.Module, mode: bool = True) -> nn.Module:
    """Keep a frozen module in evaluation mode. This function replaces the module's `train`."""
    type(module).train(module, False)
    # In evaluation mode, position embeddings would ignore the coverage of training clips.
    for child in module.modules():
        if isinstance(child, FollowsGrid):
            child.training = mode
    return module
