"""The changes to packages that are not ours: what the host imports and what it calls is not there.

`slowfast.models` imports detectron2.layers.ROIAlign on import, whether detection is wanted or not;
detectron2 is in no package registry. Its evaluation of AVA has names that NumPy has removed.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import numpy as np

__all__ = ["apply", "restore_numpy_names"]


def apply() -> None:
    """Let `slowfast.models` be imported without detectron2; call it before that import.

    Only the submodule is made: asking whether detectron2 is installed still gets the true answer.
    """
    if "detectron2.layers" in sys.modules or importlib.util.find_spec("detectron2"):
        return
    from slowfast_patches.roi_align import ROIAlign  # imports torch

    layers = ModuleType("detectron2.layers", "Our ROIAlign: detectron2 is not installed.")
    layers.__dict__["ROIAlign"] = ROIAlign
    sys.modules[layers.__name__] = layers


def restore_numpy_names() -> None:
    """Give `slowfast.utils.ava_evaluation` np.float and np.bool, which NumPy 1.24 removed; NumPy
    itself stays as it is."""
    from slowfast.utils.ava_evaluation import metrics

    metrics.np = SimpleNamespace(**{**vars(np), "float": float, "bool": bool})
