"""Layers that keep their weights: TRAIN.FREEZE."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from slowfast_patches.models.transformer import HEAD as TRANSFORMER_HEAD
from slowfast_patches.utils.tables import format_list

__all__ = ["freeze", "frozen_names"]

logger = logging.getLogger(__name__)

_HEAD = ("head.", *TRANSFORMER_HEAD)
"""What the parameters of a head are called."""


class _KeepsFrozen:
    """A model whose `frozen` modules stay in evaluation mode, whatever mode the others are in."""

    frozen: tuple[str, ...]

    def train(self: Any, mode: bool = True) -> Any:
        super().train(mode)  # type: ignore[misc]
        for name in self.frozen:
            self.get_submodule(name).eval()
        return self


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Have the parameters that `frozen_names` gives take no gradients. A module that has no others
    stays in evaluation mode: BN by its running statistics, no dropout. Raises as `frozen_names`.
    """
    if not patterns:
        return
    names = frozen_names(model, patterns)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in names)
    kind = type(model)
    model.__class__ = type(f"Frozen{kind.__name__}", (_KeepsFrozen, kind), {})
    model.frozen = tuple(_frozen_modules(model))  # type: ignore[assignment]
    counts = [p.numel() for p in model.parameters() if not p.requires_grad]
    total = sum(p.numel() for p in model.parameters())
    logger.info("TRAIN.FREEZE: %d of %d parameters keep their weights", sum(counts), total)


def frozen_names(model: nn.Module, patterns: Sequence[str]) -> Collection[str]:
    """The parameters that patterns of TRAIN.FREEZE name, by themselves or by a module that they are
    in; "backbone" names all but the head's.

    Raises:
        ValueError: a pattern names none, or together they name the whole head.
    """
    names = dict(model.named_parameters()).keys()
    frozen = set[str]()
    for pattern in patterns:
        if not (matched := {name for name in names if _matches(name, pattern)}):
            parts = format_list([name for name, _ in model.named_children()])
            raise ValueError(
                f"TRAIN.FREEZE {pattern} names no parameter of the model: give backbone, or names "
                f"with * and ?, of parts ({parts}) or of parameters (such as {next(iter(names))})"
            )
        frozen |= matched
    if not any(name.startswith(_HEAD) for name in names - frozen):
        raise ValueError(
            f"TRAIN.FREEZE {','.join(patterns)} freezes the whole head, which has to learn the "
            "classes; leave it out, or freeze the backbone"
        )
    return frozen


def _matches(name: str, pattern: str) -> bool:
    if pattern == "backbone":
        return not name.startswith(_HEAD)
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def _frozen_modules(module: nn.Module, prefix: str = "") -> Iterator[str]:
    """The outermost modules that have parameters, all of them frozen."""
    for name, child in module.named_children():
        learns = [parameter.requires_grad for parameter in child.parameters()]
        if learns and not any(learns):
            yield prefix + name
        else:
            yield from _frozen_modules(child, f"{prefix}{name}.")
