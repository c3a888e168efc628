"""Frozen layers: TRAIN.FREEZE."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial

from torch import nn

from slowfast_patches.models.transformer import HEAD as TRANSFORMER_HEAD
from slowfast_patches.utils.tables import format_list

logger = logging.getLogger(__name__)

_HEAD = ("head.", *TRANSFORMER_HEAD)
"""Prefixes of the parameter names of classification heads."""


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze the parameters that patterns of TRAIN.FREEZE match.

    Frozen parameters require no gradient. A module whose parameters are all frozen stays in
    evaluation mode when the model is put into training mode: BN normalises by its running
    statistics and dropout is off.

    Args:
        model: The model to change.
        patterns: See `frozen_names`, whose errors this raises too. Nothing is frozen without any.
    """
    if not patterns:
        return
    names = frozen_names(model, patterns)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in names)
    for module in _frozen_modules(model):
        # torch has no hook for `train`, and a wrapper module would rename the parameters.
        module.train = partial(_stay_in_evaluation, module)  # type: ignore[method-assign]
    counts = [p.numel() for p in model.parameters() if not p.requires_grad]
    total = sum(p.numel() for p in model.parameters())
    logger.info("TRAIN.FREEZE: %d of %d parameters are frozen", sum(counts), total)


def frozen_names(model: nn.Module, patterns: Sequence[str]) -> Collection[str]:
    """Return the names of the parameters that patterns of TRAIN.FREEZE match.

    Args:
        model: The model whose parameters are matched.
        patterns: Names of parameters or of modules that contain them, with the wildcards * and ?.
            "backbone" matches all parameters outside the head.

    Raises:
        ValueError: A pattern matches nothing, or the patterns match the whole head.
    """
    names = dict(model.named_parameters()).keys()
    frozen = set[str]()
    for pattern in patterns:
        if not (matched := {name for name in names if _matches(name, pattern)}):
            parts = format_list([name for name, _ in model.named_children()])
            raise ValueError(
                f"TRAIN.FREEZE {pattern} names no parameter of the model. Give backbone, or "
                f"names of modules ({parts}) or parameters (such as {next(iter(names))}), with the "
                "wildcards * and ?."
            )
        frozen |= matched
    if not any(name.startswith(_HEAD) for name in names - frozen):
        raise ValueError(
            f"TRAIN.FREEZE {','.join(patterns)} freezes the whole head, which then cannot learn "
            "the classes. Leave the key out, or freeze the backbone only."
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
    """Keep a frozen module in evaluation mode. This replaces its method `train`."""
    return type(module).train(module, False)
