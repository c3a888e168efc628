"""The stand-in for detectron2, only where it is missing."""

import importlib.util
import sys
from types import ModuleType

import pytest

from slowfast_patches import patching
from slowfast_patches.utils.errors import UserError


@pytest.fixture
def without_detectron2(monkeypatch):
    """No detectron2 is installed, and nothing stands in for it yet."""
    monkeypatch.setitem(sys.modules, "detectron2.layers", ModuleType("before"))
    monkeypatch.delitem(sys.modules, "detectron2.layers")  # is put back after the test
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def test_the_first_layer_that_is_provided_stays(without_detectron2):
    patching.provide_roi_align(dict)
    patching.apply()
    assert sys.modules["detectron2.layers"].ROIAlign is dict


def test_without_a_layer_only_a_model_with_it_is_refused(without_detectron2):
    patching.apply()
    with pytest.raises(UserError, match="detectron2"):
        sys.modules["detectron2.layers"].ROIAlign()
