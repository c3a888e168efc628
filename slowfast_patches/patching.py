"""The one change to a package that is not ours: a stand-in for detectron2 where it is missing.

`slowfast.models` imports detectron2.layers.ROIAlign on import, whether detection is wanted or not.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

__all__ = ["apply"]


class ROIAlign:
    """Stands in for detectron2.layers.ROIAlign where detectron2 is not installed."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise ImportError(
            "DETECTION.ENABLE True needs detectron2, which is in no package registry. Install it "
            "from its repository, built against this torch: pip install --no-build-isolation "
            "git+https://github.com/facebookresearch/detectron2.git; or set DETECTION.ENABLE False."
        )


def apply() -> None:
    """Let `slowfast.models` be imported without detectron2; call it before that import.

    Only the submodule is made: asking whether detectron2 is installed still gets the true answer.
    """
    if "detectron2.layers" in sys.modules or importlib.util.find_spec("detectron2"):
        return
    layers = ModuleType("detectron2.layers", "A placeholder: detectron2 is not installed.")
    layers.__dict__["ROIAlign"] = ROIAlign
    sys.modules[layers.__name__] = layers
