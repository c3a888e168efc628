"""Replacement of modules in an existing model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


def replace_modules(
    model: nn.Module, kind: type[nn.Module], make: Callable[[Any], nn.Module]
) -> nn.Module:
    """Replace every module whose class is exactly `kind` by `make(module)`.

    Instances of subclasses are not replaced. If `make` reuses the parameters of a module, the state
    dict of the model does not change.

    Returns:
        The model, which is changed in place. If the class of the model itself is `kind`, the
        replacement of the model.
    """
    if type(model) is kind:
        return make(model)
    for name, child in list(model.named_children()):
        setattr(model, name, replace_modules(child, kind, make))
    return model
