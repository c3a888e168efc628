"""Multigrid training for PySlowFast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slowfast_patches.train.predict import load_model

__all__ = ["load_model"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from slowfast_patches.train.predict import load_model  # when it is asked for: it takes seconds

    return load_model
