"""Replacement of modules inside a model that has been built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


def replace_modules(
    model: nn.Module, kind: type[nn.Module], make: Callable[[Any], nn.Module]
) -> nn.Module:
    """Replace every module whose class is exactly `kind` by `make(module)`.

    Subclasses of `kind` are left alone. If `make` reuses the parameters, the state dict does not
    change.

    Returns:
        The model, or its replacement if the model itself is of this class.
    """
    if type(model) is kind:
        return make(model)
    for name, child in list(model.named_children()):
        setattr(model, name, replace_modules(child, kind, make))
    return model
