"""Patches that let PySlowFast 1.0 run with the packages that can be installed today.

`slowfast.models` always imports ROIAlign from detectron2, which no package registry has. The
evaluation of AVA in `slowfast.utils` uses names that NumPy has removed.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import numpy as np


def apply() -> None:
    """Make `slowfast.models` importable without detectron2.

    Call this before the import. It only adds the submodule `detectron2.layers`, so other packages
    still see that detectron2 is not installed.
    """
    if "detectron2.layers" in sys.modules or importlib.util.find_spec("detectron2"):
        return
    from slowfast_patches.roi_align import ROIAlign  # lazy: imports torch

    layers = ModuleType("detectron2.layers", "ROIAlign of slowfast_patches, for detectron2's.")
    layers.ROIAlign = ROIAlign  # type: ignore[attr-defined]
    sys.modules[layers.__name__] = layers


def restore_numpy_names() -> None:
    """Give `slowfast.utils.ava_evaluation` the names np.float and np.bool, removed in NumPy 1.24.

    NumPy itself is not changed.
    """
    from slowfast.utils.ava_evaluation import metrics

    metrics.np = SimpleNamespace(**{**vars(np), "float": float, "bool": bool})
