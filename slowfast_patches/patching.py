"""Patches that make PySlowFast 1.0 work with current packages.

`slowfast.models` imports ROIAlign from detectron2, which is not on PyPI. `slowfast.utils` evaluates
AVA with np.float and np.bool, which NumPy has removed.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import numpy as np

from slowfast_patches.registry import import_built_in


def apply() -> None:
    """Make `slowfast.models` importable without detectron2. Call this before importing it."""
    import_built_in()  # slowfast_patches.detection calls `provide_roi_align`


def provide_roi_align(layer: type) -> None:
    """Provide the layer ROIAlign, which `slowfast.models` imports, if detectron2 is not installed.

    This adds only a module `detectron2.layers`, not `detectron2` itself, so other packages still
    find that detectron2 is not installed.
    """
    if "detectron2.layers" in sys.modules or importlib.util.find_spec("detectron2"):
        return
    layers = ModuleType("detectron2.layers", "ROIAlign of slowfast_patches, for detectron2's.")
    layers.ROIAlign = layer  # type: ignore[attr-defined]
    sys.modules[layers.__name__] = layers


def restore_numpy_names() -> None:
    """Define np.float and np.bool in `slowfast.utils.ava_evaluation`. NumPy 1.24 removed them.

    The names are added to the `np` of that module. NumPy itself is not changed.
    """
    from slowfast.utils.ava_evaluation import metrics

    metrics.np = SimpleNamespace(**{**vars(np), "float": float, "bool": bool})
