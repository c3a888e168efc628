"""The stand-in for detectron2, only where it is missing, and names for the host's evaluation."""

import importlib.util
import sys
from types import ModuleType

import numpy as np
import pytest

from slowfast_patches import patching
from slowfast_patches.detection.roi_align import ROIAlign


@pytest.fixture
def without_detectron2(monkeypatch):
    """No detectron2 is installed, and nothing stands in for it yet."""
    monkeypatch.delitem(sys.modules, "detectron2.layers", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def test_without_detectron2_the_host_gets_our_roi_align(without_detectron2, monkeypatch):
    monkeypatch.setitem(sys.modules, "detectron2.layers", ModuleType("before"))
    del sys.modules["detectron2.layers"]  # is put back after the test
    patching.provide_roi_align(ROIAlign)
    assert sys.modules["detectron2.layers"].ROIAlign is ROIAlign


def test_the_evaluation_of_ava_has_the_names_that_numpy_removed(monkeypatch):
    from slowfast.utils.ava_evaluation import metrics

    monkeypatch.setattr(metrics, "np", np)
    patching.restore_numpy_names()
    # Found, found, missed: precision 1 at recalls 1/3 and 2/3.
    assert metrics.compute_average_precision(np.array([1.0, 1.0]), np.array([1 / 3, 2 / 3])) == (
        pytest.approx(2 / 3)
    )
    assert not hasattr(np, "float")
