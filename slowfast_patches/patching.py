"""The patch that makes the models of PySlowFast 1.0 importable.

`slowfast.models` imports ROIAlign from detectron2, which is not on PyPI. The patch can go when
pyslowfast no longer imports it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from slowfast_patches.seams import import_extras
from slowfast_patches.utils.errors import UserError


def apply() -> None:
    """Make `slowfast.models` importable without detectron2. Call this before importing it."""
    import_extras()  # one of them may call `provide_roi_align`
    provide_roi_align(_missing_layer)


def _missing_layer(*args: object, **kwargs: object) -> None:
    raise UserError(
        "the model has a layer ROIAlign, for which PySlowFast needs detectron2. Install detectron2."
    )


def provide_roi_align(layer: Callable[..., Any]) -> None:
    """Provide the layer ROIAlign, which `slowfast.models` imports, if detectron2 is not installed.

    This adds only a module `detectron2.layers`, not `detectron2` itself, so other packages still
    find that detectron2 is not installed.
    """
    if "detectron2.layers" in sys.modules or importlib.util.find_spec("detectron2"):
        return
    layers = ModuleType("detectron2.layers", "ROIAlign of slowfast_patches, for detectron2's.")
    layers.ROIAlign = layer  # type: ignore[attr-defined]
    sys.modules[layers.__name__] = layers
